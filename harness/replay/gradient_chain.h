// Where the gradients of a whole model leave their limits: a loss goes back through all layers, and
// what is wrong in one of them is wrong in all that come behind it on that way.
#pragma once

#include <string>
#include <vector>

#include "harness/result/result.h"

namespace plumb::harness {

// Adds to a judged result of a loss's gradients a chain of them, from the loss back: each with its
// worst statistic and that one's limit. The first that fails is the first divergence, its module
// the culprit, and both are named in the reason. `names`: the outputs in that order.
void add_gradient_chain(const Recording& recording, const std::vector<std::string>& names,
                        CheckpointResult& result);

}  // namespace plumb::harness
