// The sizes of a Zamba2 model, read from its configuration.
#pragma once

#include "blocks/models/decoder.h"

namespace plumb::blocks {

// What a Zamba2 configuration says. HF: configuration_zamba2.py.
struct Zamba2Sizes {
  DecoderSizes shared;  // of the shared transformer blocks; their input is 2 * hidden wide
  std::vector<int64_t> hybrid_layers;
  int64_t blocks, adapter_rank;
  bool attention_adapters, rotary, bias, tied;
  Activation function;
  RmsNormParams norm;

  int64_t mamba_heads, mamba_head_dim, groups, columns, taps;
  SsdParams scan;
  int64_t inner() const { return mamba_heads * mamba_head_dim; }
  int64_t mixed() const { return inner() + 2 * groups * columns; }  // channels of the convolution

  static Zamba2Sizes read(const Config& config);
};

}  // namespace plumb::blocks
