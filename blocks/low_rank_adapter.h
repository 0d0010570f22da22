// Zamba2's low-rank adapters of a shared block's projections.
#pragma once

#include "blocks/linear.h"

namespace plumb::blocks {

// A low-rank update of a projection, R(W1 R(W0 x)): Zamba2's nn.Sequential of two Linears.
// x [..., C] -> out [..., N].
struct LowRankAdapter {
  Linear down, up;

  static LowRankAdapter load(const Weights& weights);
  void operator()(Context& ctx, const Tensor& out, const Tensor& x) const;
  // R(W0 x), for add_to(): x's other products may share the launch. In the caller's scratch memory.
  Tensor narrowed(Context& ctx, const Tensor& x) const;
  // y = R(y + R(W1 narrow)); an observer sees the summand under `name`.
  void add_to(Context& ctx, std::string_view name, const Tensor& y, const Tensor& narrow) const;
};

void run_low_rank_adapter(const BlockCall& call);

}  // namespace plumb::blocks
