// Catalog: block name -> how to run it on recorded operands. The single list of blocks.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "blocks/context.h"
#include "blocks/params.h"
#include "blocks/weights.h"

namespace plumb::blocks {

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
  Tensor optional_output(const std::string& name) const;
};

// How far the bits of a 16-bit output are determined by the contract (verdicts: conformance).
enum class BitRule {
  exact,  // equal to the rounded oracle, bit for bit, in every dtype
  leaf,   // differs from the rounded model only where an accumulation straddles a rounding boundary
  scaled,   // a leaf that scales each row as a whole: values of one significand flip together
  cascade,  // flips feed a later sum: the share that differs grows with the square root
  none,     // judged by the gates alone; its sub-checkpoints are the sharp ones
};

// What one token's row of an output depends on: whether some rows can be computed without the
// others. Inputs share the output's token axis by its name.
enum class RowRule {
  own,      // that token's row of every input that has the axis
  queries,  // the same and all keys: a query's place in the mask moves with params' query_offset
  all,      // other tokens' rows, too: nothing can be left out
};

struct BlockEntry {
  std::string_view name;
  void (*run)(const BlockCall&);
  BitRule bits;
  RowRule rows;
  std::string_view summary;  // one line for `harness list --blocks`
  // Whether a loss may be a function of what it gives: not of masks, positions and tables, and not
  // by what caches keep.
  bool has_backward = true;
};

const std::vector<BlockEntry>& block_catalog();

// A named group of blocks.
struct BlockSuite {
  std::string_view name;
  std::vector<std::string_view> blocks;
  std::string_view summary;
};
const std::vector<BlockSuite>& block_suites();

// Any single op (blocks/op.h). No part of the catalog: the op table is its own.
inline constexpr std::string_view kOpBlock = "op";

const BlockEntry* find_block(std::string_view name);  // null when unknown

}  // namespace plumb::blocks
