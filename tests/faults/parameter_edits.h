// What may be changed in a checkpoint's parameters while its tensors stay as they are.
#pragma once

#include <string>
#include <vector>

#include "blocks/params.h"

namespace plumb::harness::testing {

struct ParameterEdit {
  std::string parameter;  // "attention.window"
  std::string change;     // "doubled", "halved", "+1", "-1", "flipped", "null", "removed"
  blocks::Params params;  // with the change
};

// Every number and boolean, those of nested objects and the last of every list of numbers too, in
// every way. A change that changes nothing (0 doubled) is left out.
std::vector<ParameterEdit> parameter_edits(const blocks::Params& params);

// Two params with the same words are equal, but for max_abs_score, a figure about the tensors.
std::string words_of(const blocks::Params& params);

}  // namespace plumb::harness::testing
