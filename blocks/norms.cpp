#include "blocks/norms.h"

#include "kernels/core/error.h"

namespace plumb::blocks {

RmsNormParams read_rms_norm_params(const Params& params) {
  const std::string& rounding = params.string("rounding");
  if (rounding != "before" && rounding != "after") {
    throw BadInput(text(params.where(), ": rounding is \"", rounding,
                        "\", expected \"before\" or \"after\" (the weight)"));
  }
  return {params.number("eps"), params.number("weight_offset"),
          rounding == "before" ? WeightRounding::before : WeightRounding::after};
}

RmsNorm RmsNorm::load(const Weights& weights, const Params& params) {
  return {weights["weight"], read_rms_norm_params(params)};
}

void RmsNorm::operator()(Context& ctx, const Tensor& out, const Tensor& x) const {
  ctx.ops.rms_norm(out, x, weight, params);
}

LayerNorm LayerNorm::load(const Weights& weights, const Params& params) {
  return {weights["weight"], weights.find("bias"), params.number("eps")};
}

void LayerNorm::operator()(Context& ctx, const Tensor& out, const Tensor& x) const {
  if (weight.rank() == 1) return ctx.ops.layer_norm(out, x, weight, bias, eps);
  const int64_t heads = x.dim(-2), channels = x.dim(-1);
  require<BadInput>(weight.shape() == Shape{heads, channels} && !bias.defined(), "layer_norm",
                    "weight has shape ", weight.shape(), ", x has ", heads, " heads of ", channels,
                    " channels; a bias of each head is not implemented");
  Arena::Scope scope(ctx.ops.arena());
  Tensor of_heads = weight;
  if (weight.dtype() != x.dtype()) {  // a matrix, which the oracle may be given as it is stored
    of_heads = ctx.take(x.dtype(), weight.shape());
    ctx.ops.cast(of_heads, weight);
  }
  for (int64_t h = 0; h < heads; ++h) {
    ctx.ops.layer_norm(out.slice(-2, h, h + 1), x.slice(-2, h, h + 1),
                       of_heads.slice(0, h, h + 1).view({channels}), bias, eps);
  }
}

Norm Norm::load(const Weights& weights, const Params& params) {
  if (params.has("rounding") || params.has("weight_offset")) return RmsNorm::load(weights, params);
  return LayerNorm::load(weights, params);
}

void Norm::operator()(Context& ctx, const Tensor& out, const Tensor& x) const {
  std::visit([&](const auto& norm) { norm(ctx, out, x); }, static_cast<const variant&>(*this));
}

void Norm::add(Context& ctx, const Tensor& sum, const Tensor& out, const Tensor& x,
               const Tensor& residual) const {
  if (const auto* rms = std::get_if<RmsNorm>(this)) {
    ctx.ops.add_rms_norm(sum, out, x, residual, rms->weight, rms->params);
    return;
  }
  ctx.ops.add(sum, residual, x);
  (*this)(ctx, out, sum);
}

void run_rms_norm(const BlockCall& call) {
  RmsNorm::load(call.weights, call.params)(call.ctx, call.output("out"), call.input("x"));
}

void run_layer_norm(const BlockCall& call) {
  LayerNorm::load(call.weights, call.params)(call.ctx, call.output("out"), call.input("x"));
}

}  // namespace plumb::blocks
