// The gradients of rms_norm and layer_norm over the last axis. x, d_out, d_x [..., C], weight,
// d_weight, d_bias [C].
//
// Memory-bound: a block owns some rows and reads each once, the next one on its way while it
// reduces one. A thread has the same columns of every row, whose weights and sums over rows stay in
// its registers (column_sums.h); of rows too long for that (Own = 0) both are read each time.
#include <algorithm>

#include "kernels/gpu/column_sums.h"
#include "kernels/gpu/norms.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kMostNormThreads = 512;

template <class T>
struct NormBackwardOperands {
  T* d_x;
  const T* x;
  const T* d_out;
  Rows d_x_rows, x_rows, d_out_rows;
  const T* weight;
  float* by_weight;  // [blocks, columns]; null: not asked for
  float* by_bias;
  SharedRows shared;
  int64_t columns;
  float reciprocal_of_columns, eps, weight_offset;
  bool round_before;  // R() of the normalised row
};

// Three sums over a block in one exchange. Like BlockReduction it alternates between two places.
template <int Wave>
class ThreeSums {
 public:
  __device__ void sum(float (&v)[3]) {
    const unsigned thread = thread_index().x, waves = block_size().x / Wave;
#pragma unroll
    for (int i = 0; i < 3; ++i) v[i] = warp_sum<Wave>(v[i]);
    if (waves == 1) return;
    auto& place = block_shared<Places>().of_turn[turn_];
    turn_ ^= 1;
    if (thread % Wave == 0) {
#pragma unroll
      for (int i = 0; i < 3; ++i) place.sums[i][thread / Wave] = v[i];
    }
    block_barrier();
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      v[i] = 0;
      for (unsigned w = 0; w < waves; ++w) v[i] += place.sums[i][w];
    }
  }

 private:
  struct Place {
    float sums[3][kMostNormThreads / Wave];
  };
  struct Places {
    Place of_turn[2];
  };
  int turn_ = 0;
};

// Centred: layer_norm, which subtracts the mean.
template <class T, int Wave, int N, int Own, bool Centred>
__global__ void __launch_bounds__(kMostNormThreads) norm_backward(NormBackwardOperands<T> p) {
  wait_for_previous_kernel();
  BlockReduction<Wave> of_mean;
  ThreeSums<Wave> of_row;
  constexpr int kKept = Own > 0 ? Own : 1;
  const int64_t block = block_index().x, begin = p.shared.begin(block), end = p.shared.end(block);
  RowSlice<T, N, Own> x(p.columns), d(p.columns), weight(p.columns);
  float by_weight[kKept][N] = {}, by_bias[kKept][N] = {};
  weight.load(p.weight);
  if (Own == 0) {
    for (int j = 0; x.column(j) < p.columns; ++j) {
      for (int i = 0; i < N; ++i) {
        if (p.by_weight) p.by_weight[block * p.columns + x.column(j) + i] = 0;
        if (p.by_bias) p.by_bias[block * p.columns + x.column(j) + i] = 0;
      }
    }
  }
  x.load(p.x + p.x_rows.offset(begin));
  d.load(p.d_out + p.d_out_rows.offset(begin));
  for (int64_t row = begin; row < end; ++row) {
    const T* from = p.x + p.x_rows.offset(row);
    const T* d_from = p.d_out + p.d_out_rows.offset(row);
    RowSlice<T, N, Own> next_x(p.columns), next_d(p.columns);
    if (Own == 1 && row + 1 < end) {
      next_x.load(p.x + p.x_rows.offset(row + 1));
      next_d.load(p.d_out + p.d_out_rows.offset(row + 1));
    }
    float mean = 0;
    if constexpr (Centred) {
      float sum = 0;
      x.each(from, [&](int64_t, const Vector<T, N>& v, int) {
        const Floats<T, N> element(v);
#pragma unroll
        for (int i = 0; i < N; ++i) sum += element[i];
      });
      mean = of_mean.sum(sum) * p.reciprocal_of_columns;
    }
    float sums[3] = {};  // of squares, of products, of the weighted gradient
    x.each(from, [&](int64_t, const Vector<T, N>& v, int j) {
      const Floats<T, N> element(v), gradient(d.at(d_from, j)), w(weight.at(p.weight, j));
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float centred = element[i] - mean, g = (p.weight_offset + w[i]) * gradient[i];
        sums[0] = fused_multiply_add(centred, centred, sums[0]);
        sums[1] = fused_multiply_add(centred, g, sums[1]);
        sums[2] += g;
      }
    });
    of_row.sum(sums);
    const float r = reciprocal_sqrt(sums[0] * p.reciprocal_of_columns + p.eps);
    const float slope = r * r * sums[1] * p.reciprocal_of_columns;
    const float shift = Centred ? sums[2] * p.reciprocal_of_columns : 0;
    T* to = p.d_x + p.d_x_rows.offset(row);
    x.each(from, [&](int64_t column, const Vector<T, N>& v, int j) {
      const Floats<T, N> element(v), gradient(d.at(d_from, j)), w(weight.at(p.weight, j));
      float y[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float centred = element[i] - mean, g = (p.weight_offset + w[i]) * gradient[i];
        const float n = p.round_before ? rounded<T>(centred * r) : centred * r;
        y[i] = r * fused_multiply_add(-centred, slope, g - shift);
        if constexpr (Own > 0) {
          by_weight[j][i] = fused_multiply_add(gradient[i], n, by_weight[j][i]);
          by_bias[j][i] += gradient[i];
        } else {
          const int64_t at = block * p.columns + column + i;
          if (p.by_weight) p.by_weight[at] = fused_multiply_add(gradient[i], n, p.by_weight[at]);
          if (p.by_bias) p.by_bias[at] += gradient[i];
        }
      }
      store_vector(to + column, narrowed<T>(y));
    });
    if constexpr (Own == 1) {
      x = next_x;
      d = next_d;
    } else if (Own > 1 && row + 1 < end) {
      x.load(p.x + p.x_rows.offset(row + 1));
      d.load(p.d_out + p.d_out_rows.offset(row + 1));
    }
  }
  if constexpr (Own > 0) {
    x.each(nullptr, [&](int64_t column, const Vector<T, N>&, int j) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (p.by_weight) p.by_weight[block * p.columns + column + i] = by_weight[j][i];
        if (Centred && p.by_bias) p.by_bias[block * p.columns + column + i] = by_bias[j][i];
      }
    });
  }
}

template <bool Centred>
void run_norm_backward(GpuOps& ops, const char* op, const Tensor& d_x, const Tensor& d_weight,
                       const Tensor& d_bias, const Tensor& x, const Tensor& weight,
                       const Tensor& d_out, double eps, double weight_offset, bool round_before) {
  Arena::Scope scope(ops.arena());
  const int64_t columns = x.dim(-1);
  with_storage(op, x.dtype(), [&]<class T>(T) {
    const SharedRows shared(x.numel() > 0 ? x.numel() / columns : 0);
    const auto sums = [&](const Tensor& wanted) -> float* {
      if (!wanted.defined() || columns == 0) return nullptr;
      return ops.arena()
          .take(DType::f32, {std::max<int64_t>(1, shared.blocks), columns})
          .template data<float>();
    };
    NormBackwardOperands<T> p{d_x.data<T>(),
                              x.data<T>(),
                              d_out.data<T>(),
                              rows_of(op, d_x),
                              rows_of(op, x),
                              rows_of(op, d_out),
                              weight.data<T>(),
                              sums(d_weight),
                              sums(d_bias),
                              shared,
                              columns,
                              1.0f / static_cast<float>(columns),
                              static_cast<float>(eps),
                              static_cast<float>(weight_offset),
                              round_before};
    const bool vectors = rows_are_vectors(x) && rows_are_vectors(d_x) && rows_are_vectors(d_out) &&
                         is_vector(weight) && columns % kVector<T> == 0 && ops.choose("vectors");
    if (!vectors) ops.settle_for("scalars");
    if (shared.rows > 0) {
      with_wave(ops.stream(), [&]<int Wave>() {
        const auto go = [&]<int N, int Own>() {
          const int64_t pieces = (columns / N + std::max(Own, 1) - 1) / std::max(Own, 1);
          const auto threads = static_cast<unsigned>(
              std::min<int64_t>((pieces + Wave - 1) / Wave * Wave, kMostNormThreads));
          launch_overlapped<norm_backward<T, Wave, N, Own, Centred>>(
              op, {grid_of_rows(op, shared.blocks)}, {threads}, 0, ops.stream(), p);
        };
        const auto of_width = [&]<int N>() {
          const int64_t pieces = columns / N;
          if (pieces <= kMostNormThreads) return go.template operator()<N, 1>();
          if constexpr (N > 1) {
            if (pieces <= 2 * kMostNormThreads) return go.template operator()<N, 2>();
          }
          go.template operator()<N, 0>();
        };
        vectors ? of_width.template operator()<kVector<T>>() : of_width.template operator()<1>();
      });
    }
    const auto finish = [&](const Tensor& out, const float* partial) {
      if (!out.defined()) return;
      add_column_sums(ops, op, out.data<T>(), 1, partial, shared.blocks, columns);
    };
    finish(d_weight, p.by_weight);
    finish(d_bias, p.by_bias);
  });
}

}  // namespace

void GpuOps::do_rms_norm_backward(const Tensor& d_x, const Tensor& d_weight, const Tensor& x,
                                  const Tensor& weight, const Tensor& d_out,
                                  const RmsNormParams& params) {
  run_norm_backward<false>(*this, "rms_norm_backward", d_x, d_weight, {}, x, weight, d_out,
                           params.eps, params.weight_offset,
                           params.rounding == WeightRounding::before);
}

void GpuOps::do_layer_norm_backward(const Tensor& d_x, const Tensor& d_weight, const Tensor& d_bias,
                                    const Tensor& x, const Tensor& weight, const Tensor& d_out,
                                    double eps) {
  run_norm_backward<true>(*this, "layer_norm_backward", d_x, d_weight, d_bias, x, weight, d_out,
                          eps, 0, false);
}

}  // namespace plumb::PLUMB_GPU_VENDOR
