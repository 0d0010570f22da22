// A chain for people: a table of its figures, layer by layer.
#pragma once

#include <string>

#include "harness/result/result.h"

namespace plumb::harness {

// Of a result with a chain. A line that names it, a table, what the logits show. A chain that
// passes has one row per layer, of the step that came closest to its limit; one that fails, or with
// `every_step`, one per layer and step. Columns:
//   introduced  error on recorded inputs, and what is allowed
//   inherited   amplification times the error of what came in
//   chained     error with all that came before, and what is allowed
//   forecast, excess   of what both together make; excess: chained over it
//   shadow      error against the float64 block on the chain's own inputs
// Of a loss's gradients a row is a gradient's, or the worst one's of a layer, from the loss back.
std::string chain_text(const CheckpointResult& result, bool every_step);
std::string chain_table(const ChainReport& chain, bool every_step);

}  // namespace plumb::harness
