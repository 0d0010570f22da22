// The gradients of Mamba2's gated RMSNorm over groups of channels. x, d_out, d_x in X, gate,
// weight, d_gate, d_weight in T.
//
// A block owns one group of some rows and reads it three times, of which the caches keep what they
// can. A thread has the same channels of every row; their sums over rows are in memory
// (column_sums.h), which it alone touches.
#include <algorithm>

#include "kernels/gpu/column_sums.h"
#include "kernels/gpu/float_arithmetic.h"
#include "kernels/gpu/reduce.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kGatedThreads = 256;

template <class X, class T>
struct GatedBackwardOperands {
  X* d_x;
  T* d_gate;
  const X* x;
  const T* gate;
  const T* weight;
  const X* d_out;
  Rows d_x_rows, d_gate_rows, x_rows, gate_rows, d_out_rows;
  float* by_weight;  // [blocks, columns]; null: not asked for
  SharedRows shared;
  int64_t columns, width;
  float eps;
};

template <class X, class T, int Wave>
__global__ void __launch_bounds__(kGatedThreads) gated_backward(GatedBackwardOperands<X, T> p) {
  wait_for_previous_kernel();
  BlockReduction<Wave> over_block;
  const FloatArithmetic<float> m(0, 0);
  const int64_t block = block_index().x, first = int64_t{block_index().y} * p.width;
  const int64_t end = p.shared.end(block);
  float* by_weight = p.by_weight ? p.by_weight + block * p.columns + first : nullptr;
  const auto each = [&](auto visit) {
    for (int64_t i = thread_index().x; i < p.width; i += kGatedThreads) visit(i);
  };
  if (by_weight) each([&](int64_t i) { by_weight[i] = 0; });
  for (int64_t row = p.shared.begin(block); row < end; ++row) {
    const X* x = p.x + p.x_rows.offset(row) + first;
    const X* d = p.d_out + p.d_out_rows.offset(row) + first;
    const T* gate = p.gate + p.gate_rows.offset(row) + first;
    const auto v = [&](int64_t i) { return m.silu(to_float(gate[i])) * to_float(x[i]); };
    const auto g = [&](int64_t i) { return to_float(d[i]) * to_float(p.weight[first + i]); };
    float squares = 0, products = 0;
    each([&](int64_t i) {
      const float value = v(i);
      squares = fused_multiply_add(value, value, squares);
      products = fused_multiply_add(value, g(i), products);
    });
    const auto count = static_cast<float>(p.width);
    const float r = reciprocal_sqrt(over_block.sum(squares) / count + p.eps);
    const float slope = r * r * over_block.sum(products) / count;
    X* d_x = p.d_x + p.d_x_rows.offset(row) + first;
    T* d_gate = p.d_gate + p.d_gate_rows.offset(row) + first;
    each([&](int64_t i) {
      const float value = v(i), by = to_float(gate[i]);
      if (by_weight) {
        by_weight[i] = fused_multiply_add(to_float(d[i]), rounded<X>(value * r), by_weight[i]);
      }
      const float h = r * fused_multiply_add(-value, slope, g(i));
      const float d_by = formulas::gate_backward_silu::of(m, by, to_float(x[i]), h);
      d_x[i] = from_float<X>(h * m.silu(by));
      d_gate[i] = from_float<T>(d_by);
    });
  }
}

}  // namespace

void GpuOps::do_gated_rms_norm_backward(const Tensor& d_x, const Tensor& d_gate,
                                        const Tensor& d_weight, const Tensor& x, const Tensor& gate,
                                        const Tensor& weight, const Tensor& d_out,
                                        const GatedRmsNormParams& params) {
  constexpr const char* kOp = "gated_rms_norm_backward";
  const int64_t columns = x.dim(-1);
  if (columns == 0) return;
  Arena::Scope scope(arena());
  const auto go = [&]<class X, class T>() {
    const SharedRows shared(x.numel() / columns);
    GatedBackwardOperands<X, T> p{d_x.data<X>(),
                                  d_gate.data<T>(),
                                  x.data<X>(),
                                  gate.data<T>(),
                                  weight.data<T>(),
                                  d_out.data<X>(),
                                  rows_of(kOp, d_x),
                                  rows_of(kOp, d_gate),
                                  rows_of(kOp, x),
                                  rows_of(kOp, gate),
                                  rows_of(kOp, d_out),
                                  nullptr,
                                  shared,
                                  columns,
                                  params.group_size,
                                  static_cast<float>(params.eps)};
    if (d_weight.defined()) {
      const int64_t blocks = std::max<int64_t>(1, shared.blocks);
      p.by_weight = arena().take(DType::f32, {blocks, columns}).template data<float>();
    }
    if (shared.rows > 0) {
      const auto groups = static_cast<unsigned>(columns / p.width);
      with_wave(stream(), [&]<int Wave>() {
        launch_overlapped<gated_backward<X, T, Wave>>(
            kOp, {grid_of_rows(kOp, shared.blocks), groups}, {kGatedThreads}, 0, stream(), p);
      });
    }
    if (d_weight.defined()) {
      add_column_sums(*this, kOp, d_weight.data<T>(), 1, p.by_weight, shared.blocks, columns);
    }
  };
  with_storage(kOp, gate.dtype(), [&]<class T>(T) {
    if (x.dtype() == gate.dtype()) return go.template operator()<T, T>();
    go.template operator()<float, T>();
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
