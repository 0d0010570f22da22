// harness support --ops.
#pragma once

#include <string>

#include "harness/process/isolated.h"

namespace plumb::harness {

// The catalogue of ops: dtypes of each on each device, and the largest error in float32. Fails
// where one is larger than the op's formula allows.
int print_op_support(const std::string& device_names, const Step& step);

}  // namespace plumb::harness
