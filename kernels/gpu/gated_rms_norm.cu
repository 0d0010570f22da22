// Mamba2's gated RMSNorm over groups of channels: v = x silu(gate), R(w R(v / rms(v))). x, gate
// [..., C], weight [C]; x and out in X, gate and weight in T.
//
// A block owns a group of one row and reads it twice, the second time from the caches.
#include "kernels/gpu/functions.h"
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/reduce.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256;

template <class X, class T>
struct GatedOperands {
  X* out;
  Rows out_rows;
  const X* x;
  Rows x_rows;
  const T* gate;
  Rows gate_rows;
  const T* weight;
  Divisor groups;  // of a row
  int64_t width, total;
  float eps;
};

template <class X, class T, int Wave>
__global__ void __launch_bounds__(kThreads) gated_groups(GatedOperands<X, T> p) {
  wait_for_previous_kernel();
  BlockReduction<Wave> over_block;
  for (int64_t group = block_index().x; group < p.total; group += grid_size().x) {
    const Division at = divide(group, p.groups);
    const int64_t first = at.remainder * p.width;
    const X* x = p.x + p.x_rows.offset(at.quotient) + first;
    const T* gate = p.gate + p.gate_rows.offset(at.quotient) + first;
    const auto value = [&](int64_t i) {
      return to_float(x[i]) * activate<X, Activation::silu>(to_float(gate[i]));
    };
    float squares = 0;
    for (int64_t i = thread_index().x; i < p.width; i += kThreads) {
      const float v = value(i);
      squares = fused_multiply_add(v, v, squares);
    }
    const float mean = over_block.sum(squares) / static_cast<float>(p.width);
    const float factor = reciprocal_sqrt(mean + p.eps);
    X* out = p.out + p.out_rows.offset(at.quotient) + first;
    for (int64_t i = thread_index().x; i < p.width; i += kThreads) {
      out[i] = from_float<X>(to_float(p.weight[first + i]) * rounded<X>(value(i) * factor));
    }
  }
}

}  // namespace

void GpuOps::do_gated_rms_norm(const Tensor& out, const Tensor& x, const Tensor& gate,
                               const Tensor& weight, const GatedRmsNormParams& params) {
  if (x.numel() == 0) return;
  settle_for("groups");
  const auto go = [&]<class X, class T>() {
    GatedOperands<X, T> p{};
    p.out = out.data<X>();
    p.out_rows = rows_of("gated_rms_norm", out);
    p.x = x.data<X>();
    p.x_rows = rows_of("gated_rms_norm", x);
    p.gate = gate.data<T>();
    p.gate_rows = rows_of("gated_rms_norm", gate);
    p.weight = weight.data<T>();
    p.width = params.group_size;
    p.groups = Divisor(x.dim(-1) / p.width);
    p.total = divisible("gated_rms_norm", x.numel() / p.width);
    p.eps = static_cast<float>(params.eps);
    with_wave(stream(), [&]<int Wave>() {
      constexpr auto kKernel = gated_groups<X, T, Wave>;
      launch_overlapped<kKernel>("gated_rms_norm", {grid_for(p.total, 1)}, {kThreads}, 0, stream(),
                                 p);
    });
  };
  with_storage("gated_rms_norm", gate.dtype(), [&]<class T>(T) {
    if (x.dtype() == gate.dtype()) return go.template operator()<T, T>();
    go.template operator()<float, T>();
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
