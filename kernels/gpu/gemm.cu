// linear and matmul: the tiled product that always builds, and a kernel for few rows.
//
// product_tiles: product_tiles.h. gemv: out [M <= 8, N] = x w^T; a wave owns a column,
// reads its weights once with 16-byte accesses and keeps M sums. One row: one_row.cu.
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/plain.h"
#include "kernels/gpu/product_tiles.h"
#include "kernels/gpu/row_tail.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256;

template <class T>
struct GemmOperands {
  T* out;
  Rows out_rows;  // of one (batch, head) for batched products
  const T* a;
  Rows a_rows;
  const T* b;
  int64_t b_inner, b_column;  // strides of b along k and n
  const T* bias;              // null: none
  int64_t a_inner;            // stride of a along k
  float alpha, beta;
  const T* c;  // null: none
  Rows c_rows;
  int64_t c_batch, c_head;
  bool has_function;
  Activation function;
  int64_t rows, columns, inner;
  // Batched: z = batch * heads + head; b's head is head / group.
  int64_t batches, heads, group;
  int64_t a_batch, a_head, b_batch, b_head, out_batch, out_head;

  struct Product {
    const GemmOperands& p;
    const T* a_first;
    const T* b_first;
    T* out_first;
    const T* c_first;

    __device__ float left(int64_t row, int64_t k) const {
      return to_float(a_first[p.a_rows.offset(row) + k * p.a_inner]);
    }
    __device__ float right(int64_t k, int64_t column) const {
      return to_float(b_first[k * p.b_inner + column * p.b_column]);
    }
    __device__ void finish(int64_t row, int64_t column, float sum) const {
      const float added = p.bias ? to_float(p.bias[column]) : 0.0f;
      float y = p.alpha * sum;
      if (p.c) y = fused_multiply_add(p.beta, to_float(c_first[p.c_rows.offset(row) + column]), y);
      y += added;
      if (p.has_function) y = activated<T>(p.function, y);
      out_first[p.out_rows.offset(row) + column] = from_float<T>(y);
    }
  };
  __device__ Product of(int64_t z) const {
    const int64_t head = z % heads, batch = z / heads;
    return {*this, a + batch * a_batch + head * a_head, b + batch * b_batch + head / group * b_head,
            out + batch * out_batch + head * out_head, c + batch * c_batch + head * c_head};
  }
  __device__ bool right_along_inner() const { return b_inner == 1; }
};

template <class T, int Wave, int M>
__global__ void __launch_bounds__(kThreads) gemv(GemmOperands<T> p) {
  wait_for_previous_kernel();
  constexpr int N = kVector<T>, kInFlight = 4;  // loads of weights before the first use
  const int lane = static_cast<int>(thread_index().x) % Wave;
  const int64_t waves = int64_t{grid_size().x} * (kThreads / Wave);
  int64_t column = int64_t{block_index().x} * (kThreads / Wave) + thread_index().x / Wave;
  for (; column < p.columns; column += waves) {
    const T* w = p.b + column * p.b_column;
    float sum[M] = {};
    for (int64_t k0 = int64_t{lane} * N; k0 < p.inner; k0 += int64_t{kInFlight} * Wave * N) {
      Vector<T, N> weights[kInFlight];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const int64_t k = k0 + int64_t{j} * Wave * N;
        weights[j] = k < p.inner ? load_vector<N>(w + k) : Vector<T, N>{};
      }
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const int64_t k = k0 + int64_t{j} * Wave * N;
        if (k >= p.inner) break;
#pragma unroll
        for (int m = 0; m < M; ++m) {
          if (m >= p.rows) continue;
          const auto x = load_vector<N>(p.a + p.a_rows.offset(m) + k);
#pragma unroll
          for (int i = 0; i < N; ++i) {
            sum[m] = fused_multiply_add(to_float(x[i]), to_float(weights[j][i]), sum[m]);
          }
        }
      }
    }
    const float bias = p.bias ? to_float(p.bias[column]) : 0.0f;
#pragma unroll
    for (int m = 0; m < M; ++m) {
      const float total = warp_sum<Wave>(sum[m]);
      if (lane == 0 && m < p.rows) {
        p.out[p.out_rows.offset(m) + column] = from_float<T>(total + bias);
      }
    }
  }
}

}  // namespace

// A single row is left as it is: its kernel also takes over what comes before and behind it.
std::vector<LinearWay> GpuOps::linear_ways(const LinearShape& shape) {
  std::vector<LinearWay> out;
  if (shape.rows <= 1) return out;
  for (const std::string& algorithm : library_algorithms(shape)) {
    out.push_back({"cublaslt", algorithm});
  }
  if (shape.rows <= 8) out.push_back({"gemv"});
  out.push_back({"tiles"});
  return out;
}

void GpuOps::do_linear(const Tensor& out, const Tensor& x, const Tensor& weight,
                       const Tensor& bias) {
  if (out.numel() == 0) return;
  const int64_t rows = out.numel() / out.dim(-1);
  const bool vectors = rows_are_vectors(x) && rows_are_vectors(weight);
  const bool single = rows == 1 && vectors && x.dim(-1) <= INT32_MAX / 2 && choose("one_row");
  if (single)
    return held_.one_row({out, x, weight, bias, {}, {}, {}, {}}, in_flight_.settled(weight));
  const LinearWay* tuned =
      choice().forced() ? nullptr : tuned_.find(linear_shape(out, weight, bias));
  if (tuned && tuned->kernel == "cublaslt" && library_linear(out, x, weight, bias, tuned->choice)) {
    return;
  }
  const bool by_own = tuned && tuned->kernel != "cublaslt";
  if (!by_own && library_linear(out, x, weight, bias)) return;
  with_storage("linear", out.dtype(), [&]<class T>(T) {
    GemmOperands<T> p{};
    p.out = out.data<T>();
    p.out_rows = rows_of("linear", out);
    p.a = x.data<T>();
    p.a_rows = rows_of("linear", x);
    p.b = weight.data<T>();
    p.b_inner = 1;
    p.b_column = weight.stride(0);
    p.bias = bias.defined() ? bias.data<T>() : nullptr;
    p.rows = rows;
    p.columns = weight.dim(0);
    p.inner = weight.dim(1);
    p.batches = p.heads = p.group = p.a_inner = 1;
    p.alpha = 1;
    const auto go = [&]<int M>() {
      with_wave(stream(), [&]<int Wave>() {
        launch_overlapped<gemv<T, Wave, M>>("linear", {grid_for(p.columns, kThreads / Wave)},
                                            {kThreads}, 0, stream(), p);
      });
    };
    if (vectors && !(tuned && tuned->kernel == "tiles")) {
      if (p.rows <= 4 && choose("gemv", "m4")) return go.template operator()<4>();
      if (p.rows <= 8 && choose("gemv", "m8")) return go.template operator()<8>();
    }
    settle_for("tiles");
    launch_product_tiles("linear", stream(), p);
  });
}

void GpuOps::do_gemm(const GemmCall& call) {
  const char* op = call.row.name;
  const Tensor &out = call.out, &a = call.a, &b = call.b, &c = call.c;
  const GemmParams& params = call.params;
  if (out.numel() == 0) return;
  if (library_gemm(call)) return;
  if (!is_vectorised(a.dtype())) {
    settle_for("tiles");
    return multiply_plainly(*this, call);
  }
  with_storage(op, out.dtype(), [&]<class T>(T) {
    const auto rows_along = [&](int64_t stride) {
      Rows rows;
      rows.count = call.rows();
      rows.innermost = Divisor(rows.count);
      rows.stride2 = stride;
      return rows;
    };
    GemmOperands<T> p{};
    p.out = out.data<T>();
    p.out_rows = rows_along(out.stride(2));
    p.out_batch = out.stride(0);
    p.out_head = out.stride(1);
    p.a = a.data<T>();
    p.a_rows = rows_along(params.transpose_a ? 1 : a.stride(2));
    p.a_inner = params.transpose_a ? a.stride(2) : 1;
    p.a_batch = a.stride(0);
    p.a_head = a.stride(1);
    p.b = b.data<T>();
    p.b_inner = params.transpose_b ? 1 : b.stride(2);
    p.b_column = params.transpose_b ? b.stride(2) : 1;
    p.b_batch = b.stride(0);
    p.b_head = b.stride(1);
    p.rows = call.rows();
    p.inner = call.inner();
    p.columns = call.columns();
    p.heads = a.dim(1);
    p.batches = a.dim(0) * p.heads;
    p.group = call.group();
    p.alpha = static_cast<float>(params.alpha);
    p.beta = static_cast<float>(params.beta);
    p.bias = call.bias.defined() ? call.bias.data<T>() : nullptr;
    if (c.defined()) {
      p.c = c.data<T>();
      p.c_rows = rows_along(c.stride(2));
      p.c_batch = c.stride(0);
      p.c_head = c.stride(1);
    }
    p.has_function = params.function.has_value();
    p.function = params.function.value_or(Activation::silu);
    settle_for("tiles");
    launch_product_tiles(op, stream(), p);
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
