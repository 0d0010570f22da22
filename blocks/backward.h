// The gradients of a block: its ops are taped (kernels/gradients/tape.h), and gone through
// backwards.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "blocks/catalog.h"

namespace plumb::blocks {

// What a loss hands back for an output is an input of that name with this in front; the gradient of
// an input or weight is an output with the other.
inline constexpr std::string_view kCotangent = "cotangent.", kGradient = "d_";

// Runs the block on the call's inputs, then its ops backwards from the cotangents. Outputs without
// a cotangent are not made where the block can do without, and else Unsupported. Throws Unsupported
// where an op has no rule. Returns the names of the gradients in the order in which they became
// whole: those of what the last ops read come first.
std::vector<std::string> run_backward(const BlockEntry& block, const BlockCall& call);

}  // namespace plumb::blocks
