// Token embeddings.
#pragma once

#include "blocks/catalog.h"

namespace plumb::blocks {

// Rows of a table, times a scale that the model has already rounded to its dtype (Gemma: sqrt(C);
// else 1). ids i64 [B, T] -> out [B, T, C].
struct Embedding {
  Tensor weight;  // [V, C]
  double scale = 1;

  static Embedding load(const Weights& weights, const Params& params);
  void operator()(Context& ctx, const Tensor& out, const Tensor& ids) const;
};

void run_embedding(const BlockCall& call);

}  // namespace plumb::blocks
