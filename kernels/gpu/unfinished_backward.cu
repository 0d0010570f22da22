// Backward ops that are not implemented yet.
#include "kernels/core/error.h"
#include "kernels/gpu/gpu_ops.h"

namespace plumb::PLUMB_GPU_VENDOR {

void GpuOps::do_softmax_backward(const Tensor&, const Tensor&, const Tensor&) {
  throw Unsupported("[softmax_backward] is not implemented yet");
}
void GpuOps::do_rms_norm_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                  const Tensor&, const RmsNormParams&) {
  throw Unsupported("[rms_norm_backward] is not implemented yet");
}
void GpuOps::do_layer_norm_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                    const Tensor&, const Tensor&, double) {
  throw Unsupported("[layer_norm_backward] is not implemented yet");
}
void GpuOps::do_gated_rms_norm_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                        const Tensor&, const Tensor&, const Tensor&,
                                        const GatedRmsNormParams&) {
  throw Unsupported("[gated_rms_norm_backward] is not implemented yet");
}
void GpuOps::do_embedding_backward(const Tensor&, const Tensor&, const Tensor&, double, int64_t) {
  throw Unsupported("[embedding_backward] is not implemented yet");
}
void GpuOps::do_rotary_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                RotaryStyle) {
  throw Unsupported("[rotary_backward] is not implemented yet");
}
void GpuOps::do_cross_entropy(const Tensor&, const Tensor&, const Tensor&, int64_t) {
  throw Unsupported("[cross_entropy] is not implemented yet");
}
void GpuOps::do_cross_entropy_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                       int64_t) {
  throw Unsupported("[cross_entropy_backward] is not implemented yet");
}
void GpuOps::do_causal_conv1d_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                       const Tensor&, const Tensor&, const Tensor&,
                                       std::optional<Activation>) {
  throw Unsupported("[causal_conv1d_backward] is not implemented yet");
}

}  // namespace plumb::PLUMB_GPU_VENDOR
