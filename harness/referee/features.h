// Features: what a checkpoint can prove. A window that is never exceeded, a softcap whose knee is
// never reached or norm weights that are all one let a wrong kernel pass; such a checkpoint is
// blind to them.
#pragma once

#include <string>
#include <vector>

#include "harness/recording/recording.h"

namespace plumb::harness {

struct Features {
  std::vector<std::string> exercised;
  std::vector<std::string>
      blind;  // the checkpoint has the feature, but its result does not depend on it
};

// Reads the recorded operands that the answer depends on (weights, inputs). `dtype`: of the run,
// which resolves more or less than the recording's own.
Features features_of(const Recording& recording, const Checkpoint& checkpoint, DType dtype);
Features features_of(const Recording& recording, const Checkpoint& checkpoint);

}  // namespace plumb::harness
