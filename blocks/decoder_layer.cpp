#include "blocks/decoder_layer.h"

#include "kernels/core/error.h"

namespace plumb::blocks {

DecoderLayer DecoderLayer::load(const Weights& weights, const Params& params) {
  DecoderLayer layer;
  const std::string& form = params.string("form");
  if (form != "pre_norm" && form != "sandwich") {
    throw Unsupported(
        text(params.where(), ": decoder layer form \"", form, "\"; known: pre_norm, sandwich"));
  }
  layer.sandwich = form == "sandwich";
  const RmsNormParams norm = read_rms_norm_params(params.object("norm"));
  const auto load_norm = [&](const char* name) {
    return RmsNorm{(weights / name)["weight"], norm};
  };
  layer.input_norm = load_norm("input_layernorm");
  layer.post_attention_norm = load_norm("post_attention_layernorm");
  if (layer.sandwich) {
    layer.pre_feedforward_norm = load_norm("pre_feedforward_layernorm");
    layer.post_feedforward_norm = load_norm("post_feedforward_layernorm");
  }
  layer.attention = Attention::load(weights / "self_attn", params.object("attention"));
  layer.mlp = GluMlp::load(weights / "mlp", params.object("mlp"));
  return layer;
}

void DecoderLayer::operator()(Context& ctx, const Tensor& out, const Tensor& hidden,
                              const Tensor& cos, const Tensor& sin, const KvState& state) const {
  Arena::Scope scope(ctx.ops.arena());
  const auto like_hidden = [&] { return ctx.take(hidden.dtype(), hidden.shape()); };
  const Tensor normed = like_hidden(), branch = like_hidden(), middle = like_hidden();

  input_norm(ctx, normed, hidden);
  ctx.probe("input_layernorm", "out", normed);
  {
    const Part part(ctx, "self_attn");
    attention(ctx, branch, normed, cos, sin, state);
  }
  if (sandwich) {
    post_attention_norm(ctx, branch, branch);
    ctx.probe("post_attention_layernorm", "out", branch);
    ctx.ops.add_rms_norm(middle, normed, branch, hidden, pre_feedforward_norm.weight,
                         pre_feedforward_norm.params);
    ctx.probe("pre_feedforward_layernorm", "out", normed);
  } else {
    ctx.ops.add_rms_norm(middle, normed, branch, hidden, post_attention_norm.weight,
                         post_attention_norm.params);
    ctx.probe("post_attention_layernorm", "out", normed);
  }
  {
    const Part part(ctx, "mlp");
    mlp(ctx, branch, normed);
  }
  if (sandwich) {
    post_feedforward_norm(ctx, branch, branch);
    ctx.probe("post_feedforward_layernorm", "out", branch);
  }
  ctx.ops.add(out, middle, branch);
  ctx.probe("", "out", out);
}

void run_decoder_layer(const BlockCall& call) {
  DecoderLayer layer = DecoderLayer::load(call.weights, call.params);
  take_mask_operands(call, layer.attention.sdpa.mask);
  layer(call.ctx, call.output("out"), call.input("hidden"), call.input("cos"), call.input("sin"),
        kv_state(call));
}

}  // namespace plumb::blocks
