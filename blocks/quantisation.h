// The quantised linear layers of a checkpoint, as quantization_config of its config.json has them:
// which layout of kernels/ops/layout_list.h, and what files call its tensors.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "blocks/linear.h"
#include "blocks/params.h"

namespace plumb::blocks {

struct QuantisedScheme {
  QuantLayout layout = QuantLayout::int8;
  OfAxes group{1, 0};  // rows and columns that share a scale; 0: all
  // Names of a layer's tensors; "": there is none.
  std::string codes, scales, zeros = {}, global_scale = {}, group_index = {};
  std::string unused = {};             // stored with them, and not needed
  std::vector<std::string> kept = {};  // modules with floats, by their paths, or the ends of them

  bool converts(const std::string& module) const;
  // A layer [rows, columns] of it.
  Linear load(const Weights& weights, int64_t rows, int64_t columns, bool bias) const;
};

// quantization_config of these methods: gptq and awq (4 bits), compressed-tensors (weights alone),
// fp8 (of blocks), torchao (weights alone). Unsupported, with its name, for any other and for what
// is not implemented of them.
QuantisedScheme read_quantisation(const Params& config);

}  // namespace plumb::blocks
