// A linear layer: a product and an optional bias.
#pragma once

#include <optional>
#include <string>

#include "blocks/catalog.h"

namespace plumb::blocks {

// Of a quantised weight [rows, columns]: the operands of op quantised_linear, undefined where the
// layout has none.
struct QuantisedOperands {
  Tensor codes, scales, zeros, global_scale, group_index;
  QuantisedParams params;
  int64_t rows = 0, columns = 0;
};

// torch.nn.Linear. x [..., K] -> out [..., N].
struct Linear {
  Tensor weight;  // [N, K], or undefined: `quantised` has it
  Tensor bias;    // [N] or undefined
  std::optional<QuantisedOperands> quantised = {};
  // As weight and bias, which are multiplied by them in each call, or undefined: 0 and 1 of a
  // pruned layer (torch.nn.utils.prune).
  Tensor weight_mask = {}, bias_mask = {};

  static Linear load(const Weights& weights);
  // The part of a block that is called so; params.layouts says which of them are quantised, and
  // how: layout and group as op quantised_linear has them, and shape, [N, K].
  static Linear load(const Weights& weights, const Params& params, const std::string& name);
  // Whether the block has this part.
  static bool is_in(const Weights& weights, const std::string& name);
  // The layer by itself, of which params say that it is quantised: layout and group.
  static Linear load_alone(const Weights& weights, const Params& params);

  bool defined() const { return weight.defined() || quantised; }
  int64_t rows() const { return quantised ? quantised->rows : weight.dim(0); }
  int64_t columns() const { return quantised ? quantised->columns : weight.dim(1); }
  void operator()(Context& ctx, const Tensor& out, const Tensor& x) const;
};

// Rows and columns of a group, 0 where params do not say it.
OfAxes read_group(const Params& params);
// layout and group.
QuantisedParams read_quantised(const Params& params);

void run_linear(const BlockCall& call);

}  // namespace plumb::blocks
