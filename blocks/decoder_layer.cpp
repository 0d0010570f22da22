#include "blocks/decoder_layer.h"

#include "kernels/core/error.h"

namespace plumb::blocks {

std::string_view name_of(LayerForm form) {
  constexpr std::string_view kNames[] = {"pre_norm", "sandwich", "parallel"};
  return kNames[static_cast<size_t>(form)];
}

namespace {

LayerForm read_form(const Params& params) {
  const std::string& name = params.string("form");
  for (const LayerForm form : {LayerForm::pre_norm, LayerForm::sandwich, LayerForm::parallel}) {
    if (name == name_of(form)) return form;
  }
  throw Unsupported(text(params.where(), ": decoder layer form \"", name,
                         "\"; known: pre_norm, sandwich, parallel"));
}

}  // namespace

DecoderLayer DecoderLayer::load(const Weights& weights, const Params& params) {
  DecoderLayer layer;
  layer.form = read_form(params);
  const auto load_norm = [&](const char* name) {
    return Norm::load(weights / name, params.object("norm"));
  };
  layer.input_norm = load_norm("input_layernorm");
  if (layer.form != LayerForm::parallel) {
    layer.post_attention_norm = load_norm("post_attention_layernorm");
  }
  if (layer.form == LayerForm::sandwich) {
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
  if (form == LayerForm::sandwich) {
    post_attention_norm(ctx, branch, branch);
    ctx.probe("post_attention_layernorm", "out", branch);
    pre_feedforward_norm.add(ctx, middle, normed, branch, hidden);
    ctx.probe("pre_feedforward_layernorm", "out", normed);
  } else if (form == LayerForm::parallel) {
    ctx.ops.add(middle, hidden, branch);
  } else {
    post_attention_norm.add(ctx, middle, normed, branch, hidden);
    ctx.probe("post_attention_layernorm", "out", normed);
  }
  {
    const Part part(ctx, "mlp");
    mlp(ctx, branch, normed);
  }
  if (form == LayerForm::sandwich) {
    post_feedforward_norm(ctx, branch, branch);
    ctx.probe("post_feedforward_layernorm", "out", branch);
  }
  ctx.ops.add(out, middle, branch);
  ctx.probe("", "out", out);
}

void run_decoder_layer(const BlockCall& call) {
  Arena::Scope scope(call.ctx.ops.arena());
  DecoderLayer layer = DecoderLayer::load(call.weights, call.params);
  take_mask_operands(call, layer.attention.sdpa.mask);
  layer(call.ctx, call.output("out"), call.input("hidden"),
        rotary_operand(call, layer.attention, "cos"), rotary_operand(call, layer.attention, "sin"),
        kv_state(call));
}

}  // namespace plumb::blocks
