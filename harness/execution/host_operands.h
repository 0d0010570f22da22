// A checkpoint's operands in host memory.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/core/tensor.h"

namespace plumb::harness {

struct OutputSpec {
  std::string name;
  DType dtype;
  Shape shape;
};

// Converted to the dtype of a run.
struct HostOperands {
  std::map<std::string, Tensor> inputs;
  std::map<std::string, Tensor> weights;
  std::vector<OutputSpec> outputs;
};

}  // namespace plumb::harness
