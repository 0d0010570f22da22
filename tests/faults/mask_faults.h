// Wrong masks, for causal_mask and for every block that attends.
#pragma once

#include <functional>
#include <vector>

#include "tests/faults/fault.h"
#include "tests/faults/wrong_ops.h"

namespace plumb::harness::testing {

struct MaskFault {
  const char* name;
  std::function<void(AttentionMask&)> change;  // of the parameters
};
std::vector<MaskFault> mask_edits();

struct MaskRule {
  const char* name;
  Allowed allowed;  // instead of the right rule
};
std::vector<MaskRule> mask_rules();

}  // namespace plumb::harness::testing
