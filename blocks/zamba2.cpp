#include "blocks/zamba2.h"

namespace plumb::blocks {

SharedTransformer SharedTransformer::load(const Weights& weights, const Params& params) {
  const RmsNormParams norm = read_rms_norm_params(params.object("norm"));
  params.integer("block");  // whose weights these are, for people
  params.integer("call");   // as attention and mlp say
  return {{(weights / "input_layernorm")["weight"], norm},
          {(weights / "pre_ff_layernorm")["weight"], norm},
          Attention::load(weights / "self_attn", params.object("attention")),
          GluMlp::load(weights / "feed_forward", params.object("mlp"))};
}

void SharedTransformer::operator()(Context& ctx, const Tensor& out, const Tensor& hidden,
                                   const Tensor& original, const Tensor& cos, const Tensor& sin,
                                   const KvState& state) const {
  Arena::Scope scope(ctx.ops.arena());
  const int64_t width = hidden.dim(2);
  const Tensor both = ctx.take(hidden.dtype(), {hidden.dim(0), hidden.dim(1), 2 * width});
  ctx.ops.copy_pair(both.slice(2, 0, width), hidden, both.slice(2, width, 2 * width), original);
  input_norm(ctx, both, both);
  ctx.probe("input_layernorm", "out", both);
  const Tensor attended = ctx.take(hidden.dtype(), hidden.shape());
  {
    const Part part(ctx, "self_attn");
    attention(ctx, attended, both, cos, sin, state);
  }
  pre_ff_norm(ctx, attended, attended);
  ctx.probe("pre_ff_layernorm", "out", attended);
  {
    const Part part(ctx, "feed_forward");
    mlp(ctx, out, attended);
  }
  ctx.probe("", "out", out);
}

MambaLayer MambaLayer::load(const Weights& weights, const Params& params) {
  return {{(weights / "input_layernorm")["weight"], read_rms_norm_params(params.object("norm"))},
          Mamba2Mixer::load(weights / "mamba", params.object("mamba"))};
}

void MambaLayer::operator()(Context& ctx, const Tensor& out, const Tensor& hidden,
                            const Tensor& transformer, const Tensor& token_valid,
                            const MambaState& state) const {
  Arena::Scope scope(ctx.ops.arena());
  const Tensor normed = ctx.take(hidden.dtype(), hidden.shape());
  const Tensor branch = ctx.take(hidden.dtype(), hidden.shape());
  if (transformer.defined()) {
    ctx.ops.add_rms_norm(branch, normed, transformer, hidden, norm.weight, norm.params);
  } else {
    norm(ctx, normed, hidden);
  }
  ctx.probe("input_layernorm", "out", normed);
  {
    const Part part(ctx, "mamba");
    mixer(ctx, branch, normed, token_valid, state);
  }
  ctx.ops.add(out, hidden, branch);
  ctx.probe("", "out", out);
}

HybridLayer HybridLayer::load(const Weights& weights, const Params& params) {
  return {SharedTransformer::load(weights / "shared_transformer", params),
          Linear::load(weights / "linear"), MambaLayer::load(weights / "mamba_decoder", params)};
}

void HybridLayer::operator()(Context& ctx, const Tensor& out, const Tensor& hidden,
                             const Tensor& original, const Tensor& cos, const Tensor& sin,
                             const Tensor& token_valid, const KvState& keys,
                             const MambaState& state) const {
  Arena::Scope scope(ctx.ops.arena());
  const Tensor transformed = ctx.take(hidden.dtype(), hidden.shape());
  const Tensor projected = ctx.take(hidden.dtype(), hidden.shape());
  {
    const Part part(ctx, "shared_transformer");
    transformer(ctx, transformed, hidden, original, cos, sin, keys);
  }
  linear(ctx, projected, transformed);
  ctx.probe("linear", "out", projected);
  {
    const Part part(ctx, "mamba_decoder");
    mamba(ctx, out, hidden, projected, token_valid, state);
  }
  ctx.probe("", "out", out);
}

void run_shared_transformer(const BlockCall& call) {
  SharedTransformer block = SharedTransformer::load(call.weights, call.params);
  take_mask_operands(call, block.attention.sdpa.mask);
  block(call.ctx, call.output("out"), call.input("hidden"), call.input("original"),
        rotary_operand(call, block.attention, "cos"), rotary_operand(call, block.attention, "sin"),
        kv_state(call));
}

void run_mamba_layer(const BlockCall& call) {
  MambaLayer::load(call.weights, call.params)(
      call.ctx, call.output("out"), call.input("hidden"), call.optional_input("transformer"),
      call.optional_input("token_valid"), mamba_state(call));
}

void run_hybrid_layer(const BlockCall& call) {
  HybridLayer layer = HybridLayer::load(call.weights, call.params);
  Attention& attention = layer.transformer.attention;
  take_mask_operands(call, attention.sdpa.mask);
  layer(call.ctx, call.output("out"), call.input("hidden"), call.input("original"),
        rotary_operand(call, attention, "cos"), rotary_operand(call, attention, "sin"),
        call.optional_input("token_valid"), kv_state(call), mamba_state(call));
}

}  // namespace plumb::blocks
