#include "blocks/mamba_buffer.h"

namespace plumb::blocks {

MambaBuffer::MambaBuffer(Device& device, DType dtype, int64_t batch, const Mamba2Mixer& mixer) {
  const Tensor& taps = mixer.conv.weight;
  conv_ = device.allocate(dtype, {batch, taps.dim(0), taps.dim(2)});
  ssm_ = device.allocate(dtype == DType::f64 ? DType::f64 : DType::f32,
                         {batch, mixer.heads, mixer.head_dim, mixer.columns});
}

MambaState MambaBuffer::next(int64_t tokens) {
  MambaState state;
  state.conv_after = conv_;
  state.ssm_after = ssm_;
  if (written_) {
    state.conv_before = conv_;
    state.ssm_before = ssm_;
    state.step = tokens == 1;
  }
  written_ = true;
  return state;
}

}  // namespace plumb::blocks
