// Decoding one token at a time with recorded launches.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "blocks/models/causal_lm.h"

namespace plumb::blocks {

// One token after the other with as little work for the host as the device allows: the second
// step's launches are recorded, and replayed from then on, which gives the bits of forward().
// Between steps forward() may take further tokens of the sequence.
class DecodeStep {
 public:
  // All stay where they are: ids i64 [B, 1] -> logits [B, 1, V]. `replay` false: always forward().
  DecodeStep(const CausalLm& model, Device& device, Sequence& sequence, Tensor ids, Tensor logits,
             bool replay = true)
      : model_(model),
        device_(device),
        sequence_(sequence),
        ids_(std::move(ids)),
        logits_(std::move(logits)),
        asked_(replay) {}

  // Each step puts the greedy choice among its logits into ids, for the next one, and into row
  // `length` mod N of log i64 [N, B] (Ops::choose_greedily): nothing has to come from the host.
  void choose_greedily(Tensor log) { log_ = std::move(log); }

  // The next token of every sequence; UsageError when there is no room.
  void operator()();

  // Why launches are not replayed; empty: they are.
  std::string why_eager() const;

 private:
  void queue();

  const CausalLm& model_;
  Device& device_;
  Sequence& sequence_;
  Tensor ids_, logits_, log_;
  bool asked_;
  bool warm_ = false;  // scratch memory has grown, kernels are loaded
  std::unique_ptr<Graph> graph_;
};

}  // namespace plumb::blocks
