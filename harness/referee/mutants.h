// Mutants: a checkpoint with one known bug in it, to see how far the bug is from passing.
#pragma once

#include <string_view>
#include <vector>

#include "harness/execution/execute.h"

namespace plumb::harness {

// The block computes from these operands and params what an implementation with the bug computes
// from the recorded ones. Shapes are the same.
struct Mutant {
  std::string_view bug;  // "window one key longer"
  Checkpoint checkpoint;
  HostOperands operands;
  // How it stores an output, where that is the bug; whether an element changes. Null: as it is.
  bool (*store)(Tensor& output) = nullptr;
};

// One for each known bug that the checkpoint has room for: none has a window that is not
// there. What its own params and operands cannot say (a residual that is added twice) is missing.
std::vector<Mutant> mutants_of(const Recording& recording, const Checkpoint& checkpoint,
                               const HostOperands& operands);

std::vector<std::string_view> known_bugs();

// The feature (harness/referee/features.h) that a checkpoint cannot see where this bug passes; "":
// the bug is of no one feature, or less than its absence.
std::string_view feature_behind(std::string_view bug);

}  // namespace plumb::harness
