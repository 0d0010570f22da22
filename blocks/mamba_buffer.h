// Convolution and state-space states of a running sequence in preallocated memory.
#pragma once

#include "blocks/mamba2.h"
#include "kernels/core/device.h"

namespace plumb::blocks {

// Convolution and scan states of one layer of a running sequence, in memory taken once and replaced
// in place. HF: cache_utils.py, LinearAttentionLayer.
class MambaBuffer {
 public:
  MambaBuffer(Device& device, DType dtype, int64_t batch, const Mamba2Mixer& mixer);

  // What the mixer reads and writes for the next `tokens` tokens, and the form of its scan: a
  // single token behind others steps, all else goes in chunks. The states count as written from
  // then on.
  MambaState next(int64_t tokens);

  int64_t bytes() const { return conv_.bytes() + ssm_.bytes(); }

 private:
  Tensor conv_;  // [B, channels, K]
  Tensor ssm_;   // float32 (float64 where all is) [B, H, P, N]
  bool written_ = false;
};

}  // namespace plumb::blocks
