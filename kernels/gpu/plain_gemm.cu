// Products of matrices of f64, of floats of 8 bits with float32 sums, and of i8 and u8 with i32
// sums: square tiles of both operands in shared memory, a thread per element of the output.
#include "kernels/gpu/plain.h"
#include "kernels/gpu/row_tail.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kSide = 16, kThreads = kSide * kSide;

struct Matrix {
  const void* data = nullptr;
  DType dtype = DType::f64;
  int64_t batch = 0, head = 0, row = 0, column = 0;  // strides

  Matrix() = default;
  Matrix(const Tensor& t, bool transposed)
      : data(t.raw()),
        dtype(t.dtype()),
        batch(t.stride(0)),
        head(t.stride(1)),
        row(transposed ? 1 : t.stride(2)),
        column(transposed ? t.stride(2) : 1) {}
  __device__ int64_t at(int64_t n, int64_t h, int64_t i, int64_t j) const {
    return n * batch + h * head + i * row + j * column;
  }
};

struct ProductOperands {
  void* out_data;
  Matrix out, a, b, c;
  const void* bias;
  int64_t heads, group, rows, columns, inner;
  double alpha, beta;
  bool has_function;
  Activation function;
};

// As what sums are: doubles, floats, or 32 bits that wrap around.
template <class V>
__device__ V factor(DType dtype, const void* p, int64_t at) {
  if constexpr (std::is_same_v<V, uint32_t>) {
    return static_cast<uint32_t>(static_cast<uint64_t>(load_number(dtype, p, at).i));
  } else {
    return static_cast<V>(load_number(dtype, p, at).x);
  }
}

__device__ double finished(const ProductOperands& p, double sum, double other, double bias) {
  const double y = p.alpha * sum + p.beta * other + bias;
  if (!p.has_function) return y;
  const Reals<double> m{0, 0};
  switch (p.function) {
    case Activation::silu: return m.silu(y);
    case Activation::gelu: return m.gelu(y);
    case Activation::gelu_tanh: return m.gelu_tanh(y);
    case Activation::tanh: return m.tanh(y);
  }
  return y;
}
__device__ float finished(const ProductOperands& p, float sum, float other, float bias) {
  float y = static_cast<float>(p.alpha) * sum;
  y = fused_multiply_add(static_cast<float>(p.beta), other, y) + bias;
  return p.has_function ? activated<float>(p.function, y) : y;
}
__device__ uint32_t finished(const ProductOperands&, uint32_t sum, uint32_t other, uint32_t bias) {
  return sum + other + bias;
}

template <class V>
struct ProductTiles {
  V a[kSide][kSide], b[kSide][kSide];
};

template <class V>
__global__ void __launch_bounds__(kThreads) product_of(ProductOperands p) {
  wait_for_previous_kernel();
  auto& tiles = block_shared<ProductTiles<V>>();
  const int x = static_cast<int>(thread_index().x) % kSide,
            y = static_cast<int>(thread_index().x) / kSide;
  const int64_t across = (p.columns + kSide - 1) / kSide;
  const int64_t row = block_index().x / across * kSide + y;
  const int64_t column = block_index().x % across * kSide + x;
  const int64_t n = block_index().y / p.heads, h = block_index().y % p.heads;
  V sum{};
  for (int64_t k = 0; k < p.inner; k += kSide) {
    const bool in_a = row < p.rows && k + x < p.inner, in_b = k + y < p.inner && column < p.columns;
    tiles.a[y][x] = in_a ? factor<V>(p.a.dtype, p.a.data, p.a.at(n, h, row, k + x)) : V{};
    tiles.b[y][x] =
        in_b ? factor<V>(p.b.dtype, p.b.data, p.b.at(n, h / p.group, k + y, column)) : V{};
    block_barrier();
    for (int i = 0; i < kSide; ++i) sum += tiles.a[y][i] * tiles.b[i][x];
    block_barrier();
  }
  if (row >= p.rows || column >= p.columns) return;
  const V other = p.c.data ? factor<V>(p.c.dtype, p.c.data, p.c.at(n, h, row, column)) : V{};
  const V bias = p.bias ? factor<V>(p.out.dtype, p.bias, column) : V{};
  static_cast<V*>(p.out_data)[p.out.at(n, h, row, column)] = finished(p, sum, other, bias);
}

}  // namespace

void multiply_plainly(GpuOps& ops, const GemmCall& call) {
  const char* op = call.row.name;
  const int64_t across = (call.columns() + kSide - 1) / kSide;
  const int64_t tiles = (call.rows() + kSide - 1) / kSide * across;
  const int64_t batches = call.a.dim(0) * call.a.dim(1);
  require<Unsupported>(tiles <= INT32_MAX && batches <= 65535, op, tiles, " tiles of each of ",
                       batches, " products, at most ", INT32_MAX, " and 65535 are implemented");
  const GemmParams& params = call.params;
  const ProductOperands p{call.out.raw(),
                          Matrix(call.out, false),
                          Matrix(call.a, params.transpose_a),
                          Matrix(call.b, params.transpose_b),
                          call.c.defined() ? Matrix(call.c, false) : Matrix(),
                          call.bias.defined() ? call.bias.raw() : nullptr,
                          call.a.dim(1),
                          call.group(),
                          call.rows(),
                          call.columns(),
                          call.inner(),
                          params.alpha,
                          params.beta,
                          params.function.has_value(),
                          params.function.value_or(Activation::silu)};
  const auto go = [&]<class V>(V) {
    launch_overlapped<product_of<V>>(op,
                                     {static_cast<unsigned>(tiles), static_cast<unsigned>(batches)},
                                     {kThreads}, 0, ops.stream(), p);
  };
  if (call.a.dtype() == DType::f64) go(double{});
  else if (is_float8(call.a.dtype())) go(float{});
  else go(uint32_t{});
}

}  // namespace plumb::PLUMB_GPU_VENDOR
