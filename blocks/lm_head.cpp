#include "blocks/lm_head.h"

#include <algorithm>

#include "kernels/core/error.h"

namespace plumb::blocks {

LmHead LmHead::load(const Weights& weights, const Params& params) {
  const LmHead head{Linear::load_alone(weights, params), params.integer("logits_to_keep"),
                    params.number_or_null("softcap"),
                    params.has("scale") ? params.number_or_null("scale") : std::nullopt};
  if (head.logits_to_keep < 0) {
    throw BadInput(text(params.where(), ": logits_to_keep is ", head.logits_to_keep,
                        ", expected 0 (all) or more"));
  }
  return head;
}

void LmHead::operator()(Context& ctx, const Tensor& out, const Tensor& hidden) const {
  const int64_t tokens = hidden.dim(1);
  const int64_t keep = logits_to_keep ? std::min(logits_to_keep, tokens) : tokens;
  projection(ctx, out, hidden.slice(1, tokens - keep, tokens));
  if (scale) ctx.ops.scale(out, out, *scale);
  if (softcap) ctx.ops.softcap(out, out, *softcap);
}

void run_lm_head(const BlockCall& call) {
  LmHead::load(call.weights, call.params)(call.ctx, call.output("out"), call.input("hidden"));
}

}  // namespace plumb::blocks
