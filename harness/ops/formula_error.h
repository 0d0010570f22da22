// How far a device's float32 results of an elementwise op are from float64's.
#pragma once

#include <array>
#include <optional>

#include "kernels/core/device.h"
#include "kernels/ops/op_id.h"

namespace plumb::harness {

struct FormulaError {
  double ulps = 0;                // the largest of the sample, in units of the last place
  double allowed = 0;             // by the formula
  std::array<double, 3> at = {};  // the inputs

  bool within() const { return ulps <= allowed; }
};

// Over a million of all float32 values, those next to roots, halves and multiples of pi / 2
// included; of two inputs, pairs of them whose power is in float32's range, and any. Nothing of an
// op that rounds on the way, gives bool, or is no formula of its own. Unsupported where the device
// lacks it.
std::optional<FormulaError> formula_error(OpId op, Device& device, Device& oracle);

}  // namespace plumb::harness
