#include "blocks/low_rank_adapter.h"

namespace plumb::blocks {

LowRankAdapter LowRankAdapter::load(const Weights& weights) {
  return {Linear::load(weights / "0"), Linear::load(weights / "1")};
}

Tensor LowRankAdapter::narrowed(Context& ctx, const Tensor& x) const {
  Shape shape = x.shape();
  shape.set(-1, down.rows());
  const Tensor narrow = ctx.take(x.dtype(), shape);
  down(ctx, narrow, x);
  return narrow;
}

void LowRankAdapter::operator()(Context& ctx, const Tensor& out, const Tensor& x) const {
  Arena::Scope scope(ctx.ops.arena());
  up(ctx, out, narrowed(ctx, x));
}

void LowRankAdapter::add_to(Context& ctx, std::string_view name, const Tensor& y,
                            const Tensor& narrow) const {
  const Tensor update = ctx.take(y.dtype(), y.shape());
  up(ctx, update, narrow);
  ctx.probe(name, "out", update);
  ctx.ops.add(y, y, update);
}

void run_low_rank_adapter(const BlockCall& call) {
  LowRankAdapter::load(call.weights)(call.ctx, call.output("out"), call.input("x"));
}

}  // namespace plumb::blocks
