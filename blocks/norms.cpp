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
  ctx.ops.layer_norm(out, x, weight, bias, eps);
}

void run_rms_norm(const BlockCall& call) {
  RmsNorm::load(call.weights, call.params)(call.ctx, call.output("out"), call.input("x"));
}

void run_layer_norm(const BlockCall& call) {
  LayerNorm::load(call.weights, call.params)(call.ctx, call.output("out"), call.input("x"));
}

}  // namespace plumb::blocks
