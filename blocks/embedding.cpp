#include "blocks/embedding.h"

namespace plumb::blocks {

Embedding Embedding::load(const Weights& weights, const Params& params) {
  return {weights["weight"], params.number("scale")};
}

void Embedding::operator()(Context& ctx, const Tensor& out, const Tensor& ids) const {
  ctx.ops.embedding(out, ids, weight, scale);
}

void run_embedding(const BlockCall& call) {
  Embedding::load(call.weights, call.params)(call.ctx, call.output("out"), call.input("ids"));
}

}  // namespace plumb::blocks
