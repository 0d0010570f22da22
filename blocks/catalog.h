// Catalog: block name -> how to run it on recorded operands. The single list of blocks.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "blocks/context.h"
#include "blocks/params.h"
#include "blocks/weights.h"

namespace plumb {

// One call of a block: operands by the names of fixtures/README.md, on the device of ctx. Outputs
// are allocated by the caller with the recorded shapes; the block writes them.
struct BlockCall {
  Context& ctx;
  const Params& params;
  const Weights& weights;
  const std::map<std::string, Tensor>& inputs;
  const std::map<std::string, Tensor>& outputs;

  // Throws BadInput when absent.
  Tensor input(const std::string& name) const;
  Tensor output(const std::string& name) const;
  // Undefined when absent.
  Tensor optional_input(const std::string& name) const;
};

// How far the bits of a 16-bit output are determined by the contract (verdicts: conformance).
enum class BitRule {
  exact,  // equal to the rounded oracle, bit for bit, in every dtype
  leaf,   // differs from the rounded model only where an accumulation straddles a rounding boundary
  cascade,  // flips feed a later sum: the share that differs grows with the square root
  none,     // judged by the gates alone; its sub-checkpoints are the sharp ones
};

struct BlockEntry {
  std::string_view name;
  void (*run)(const BlockCall&);
  BitRule bits;
  std::string_view summary;  // one line for `harness list --blocks`
};

const std::vector<BlockEntry>& block_catalog();
const BlockEntry* find_block(std::string_view name);  // null when unknown

}  // namespace plumb
