// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "harness/model/inference.h"

namespace plumb::harness {

// As transformers' generate(): temperature, then the top k, then the smallest set of the most
// probable tokens that holds top_p, then a draw among them.
struct Sampling {
  double temperature = 0;  // 0: greedy, the largest logit; of equal ones the smallest id
  int64_t top_k = 0;       // 0: all
  double top_p = 1;
  uint64_t seed = 0;
};

// The choice from one row of `count` logits; the same for the same seed and draw. DeviceError where
// a logit is NaN.
int64_t choose_token(const char* logits, DType dtype, int64_t count, const Sampling& sampling,
                     uint64_t draw);

struct Generated {
  TokenRows tokens;             // the new ones of each sequence
  double prompt_seconds = 0;    // until the first new token
  double decode_seconds = 0;    // for the others, and up to 15 steps behind the last stop
  int64_t decoded_per_row = 0;  // steps of one token each, until all have stopped
};

// Continues every sequence by at most `most` tokens, each until it has produced one of `stops`
// (which is kept). `said(row, id)` is called for every new token.
Generated generate(Inference& inference, const TokenRows& prompt, int64_t most,
                   const Sampling& sampling, const std::vector<int64_t>& stops,
                   const std::function<void(size_t row, int64_t id)>& said);

}  // namespace plumb::harness
