// What the figures of a chain come to: gates over its rows and its logits, and the status.
#pragma once

#include <optional>
#include <vector>

#include "harness/chain/chain_rows.h"
#include "harness/chain/chain_spread.h"
#include "harness/model/inference.h"

namespace plumb::harness {

// What is known of a chain, by row. Everything must outlive this.
struct ChainFindings {
  const Recording& recording;
  DType dtype;  // of the run
  const ChainRows& chain;
  const std::vector<Tensor>& values;  // what was made of every row; undefined: nothing
  const std::vector<Tensor>& judged;  // of judged_tokens()
  const std::vector<TokenRows>& ids;  // of every step
  bool goes_on;                       // a step continues the sequence of the one before
  const std::optional<ChainSpread>& spread;
};

// Sets how many bytes of slots of caches and convolution states a call changed that it has to leave
// as they are, in rows of `findings.chain`.
void count_changes(const ChainFindings& findings, std::vector<ChainRow>& rows);

// The worst of every kind of gate over all rows.
OutputVerdict chain_verdict(const std::vector<ChainRow>& rows);
// Distributions of the next token; without gates in float64, and where there are no logits.
OutputVerdict logits_verdict(const ChainFindings& findings);
bool any_failed(const OutputVerdict& output);

// Tokens of a row whose logits a recording keeps.
int64_t recorded_tokens(const ChainFindings& findings, size_t row);

// Status and reason of the result from the gates of its outputs and the rows of the chain.
// `failed`: it has failed already, by rows alone.
void settle_chain(CheckpointResult& result, const std::vector<ChainRow>& rows, DType dtype,
                  bool failed);

}  // namespace plumb::harness
