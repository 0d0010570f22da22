#include "blocks/linear.h"

#include "kernels/core/error.h"

namespace plumb::blocks {
namespace {

Linear of_codes(const Weights& weights, const Params& params) {
  QuantisedOperands out{weights["codes"],
                        weights.find("scales"),
                        weights.find("zeros"),
                        weights.find("global_scale"),
                        weights.find("group_index"),
                        read_quantised(params)};
  if (params.has("shape")) {
    const std::vector<double>& shape = params.numbers("shape");
    params.expect(shape.size() == 2 && shape[0] >= 1 && shape[1] >= 1,
                  "shape is not that of a matrix");
    out.rows = static_cast<int64_t>(shape[0]);
    out.columns = static_cast<int64_t>(shape[1]);
  }
  return {{}, weights.find("bias"), std::move(out)};
}

// With its zeros, in the scratch memory of ctx.
Tensor pruned(Context& ctx, const Tensor& values, const Tensor& mask) {
  if (!mask.defined()) return values;
  const Tensor out = ctx.take(values.dtype(), values.shape());
  ctx.ops.mul(out, values, mask);
  return out;
}

}  // namespace

OfAxes read_group(const Params& params) {
  OfAxes out{};
  if (!params.has("group")) return out;
  const std::vector<double>& given = params.numbers("group");
  params.expect(given.size() == 2, "group has ", given.size(),
                " numbers, expected rows and columns");
  for (size_t i = 0; i < 2; ++i) out.at(i) = static_cast<int64_t>(given[i]);
  return out;
}

QuantisedParams read_quantised(const Params& params) {
  const std::string& name = params.string("layout");
  const std::optional<QuantLayout> layout = layout_from_name(name);
  params.expect(layout.has_value(), "layout is \"", name, "\", which none is called");
  return {*layout, read_group(params)};
}

Linear Linear::load(const Weights& weights) {
  Linear out;
  out.weight_mask = weights.find("weight_mask");
  out.bias_mask = weights.find("bias_mask");
  out.weight = weights[out.weight_mask.defined() ? "weight_orig" : "weight"];
  out.bias = out.bias_mask.defined() ? weights["bias_orig"] : weights.find("bias");
  return out;
}

bool Linear::is_in(const Weights& weights, const std::string& name) {
  const Weights part = weights / name;
  return part.has("weight") || part.has("weight_orig") || part.has("codes");
}

Linear Linear::load(const Weights& weights, const Params& params, const std::string& name) {
  if (!params.has("layouts") || !params.object("layouts").has(name)) return load(weights / name);
  const Params& of = params.object("layouts").object(name);
  of.expect(of.has("shape"), "shape of ", name, " is missing");
  return of_codes(weights / name, of);
}

Linear Linear::load_alone(const Weights& weights, const Params& params) {
  return params.has("layout") ? of_codes(weights, params) : load(weights);
}

void Linear::operator()(Context& ctx, const Tensor& out, const Tensor& x) const {
  if (!quantised) {
    Arena::Scope scope(ctx.ops.arena());
    return ctx.ops.linear(out, x, pruned(ctx, weight, weight_mask), pruned(ctx, bias, bias_mask));
  }
  const QuantisedOperands& q = *quantised;
  ctx.ops.quantised_linear(out, x, q.codes, q.scales, q.zeros, q.global_scale, q.group_index, {},
                           bias, q.params);
}

void run_linear(const BlockCall& call) {
  Linear::load_alone(call.weights, call.params)(call.ctx, call.output("out"), call.input("x"));
}

}  // namespace plumb::blocks
