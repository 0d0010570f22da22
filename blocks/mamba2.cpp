#include "blocks/mamba2.h"

#include "blocks/components.h"
#include "kernels/core/error.h"

namespace plumb::blocks {

CausalConv1d CausalConv1d::load(const Weights& weights, const Params& params) {
  return {weights["weight"], weights.find("bias"), read_activation(params, "activation")};
}

void CausalConv1d::operator()(Context& ctx, const Tensor& out, const Tensor& state_after,
                              const Tensor& x, const Tensor& state_before,
                              const Tensor& token_valid) const {
  ctx.ops.causal_conv1d(out, state_after, x, weight, bias, state_before, function);
  // Again, after the projection's input: the bias would leak into padding.
  if (token_valid.defined()) ctx.ops.mask_rows(out, out, token_valid);
}

SsdScan SsdScan::load(const Weights& weights, const Params& params) {
  SsdScan scan{weights["A_log"], weights["D"], weights["dt_bias"], {}};
  const std::string& form = params.string("form");
  if (form != "chunk" && form != "step") {
    throw BadInput(
        text(params.where(), ": form is \"", form, "\", expected \"chunk\" or \"step\""));
  }
  scan.params.form = form == "chunk" ? SsdForm::chunk : SsdForm::step;
  scan.params.chunk_size = params.integer("chunk_size");
  scan.params.dt_min = params.number_or_null("dt_min");
  scan.params.dt_max = params.number_or_null("dt_max");
  return scan;
}

GatedRmsNorm GatedRmsNorm::load(const Weights& weights, const Params& params) {
  return {weights["weight"], {params.number("eps"), params.integer("group_size")}};
}

Mamba2Mixer Mamba2Mixer::load(const Weights& weights, const Params& params) {
  Mamba2Mixer mixer;
  mixer.in_proj = Linear::load(weights / "in_proj");
  mixer.out_proj = Linear::load(weights / "out_proj");
  mixer.conv = CausalConv1d::load(weights / "conv1d", params);
  mixer.scan = SsdScan::load(weights, params);
  mixer.norm = GatedRmsNorm::load(weights / "norm", params.object("norm"));
  mixer.heads = params.integer("heads");
  mixer.head_dim = params.integer("head_dim");
  mixer.groups = params.integer("groups");
  mixer.columns = params.integer("state");
  const int64_t inner = mixer.heads * mixer.head_dim;
  const int64_t rows = 2 * inner + 2 * mixer.groups * mixer.columns + mixer.heads;
  if (mixer.in_proj.rows() != rows) {
    throw BadInput(text(params.where(), ": in_proj has ", mixer.in_proj.rows(), " rows, heads ",
                        mixer.heads, " x head_dim ", mixer.head_dim, " and groups ", mixer.groups,
                        " x state ", mixer.columns, " need ", rows));
  }
  return mixer;
}

void Mamba2Mixer::operator()(Context& ctx, const Tensor& out, const Tensor& hidden,
                             const Tensor& token_valid, const MambaState& state) const {
  Arena::Scope scope(ctx.ops.arena());
  const DType dtype = hidden.dtype();
  const int64_t batch = hidden.dim(0), tokens = hidden.dim(1);
  const int64_t inner = heads * head_dim, vectors = groups * columns;
  Tensor real = hidden;
  if (token_valid.defined()) {
    real = ctx.take(dtype, hidden.shape());
    ctx.ops.mask_rows(real, hidden, token_valid);
  }
  const Tensor projected = ctx.take(dtype, {batch, tokens, in_proj.rows()});
  in_proj(ctx, projected, real);
  ctx.probe("in_proj", "out", projected);
  const int64_t mixed = inner + 2 * vectors;  // channels of the convolution: x, b, c
  const Tensor gate = projected.slice(2, 0, inner);
  const Tensor dt = projected.slice(2, inner + mixed, in_proj.rows());

  const Tensor convolved = ctx.take(dtype, {batch, tokens, mixed});
  conv(ctx, convolved, state.conv_after, projected.slice(2, inner, inner + mixed),
       state.conv_before, token_valid);
  ctx.probe("conv1d", "out", convolved);
  if (state.conv_after.defined()) ctx.probe("conv1d", "state_after", state.conv_after);
  const SsdInputs in{convolved.slice(2, 0, inner).split(2, head_dim),
                     dt,
                     convolved.slice(2, inner, inner + vectors).split(2, columns),
                     convolved.slice(2, inner + vectors, mixed).split(2, columns),
                     scan.a_log,
                     scan.d,
                     scan.dt_bias,
                     state.ssm_before};
  const SsdParams how =
      state.step ? SsdParams{SsdForm::step, scan.params.chunk_size, {}, {}} : scan.params;
  // The chunk form leaves float32.
  const DType wide = dtype == DType::f64 || how.form == SsdForm::step ? dtype : DType::f32;
  const Tensor scanned = ctx.take(wide, {batch, tokens, inner});
  ctx.ops.ssd_scan(scanned.split(2, head_dim), state.ssm_after, in, how);
  ctx.probe(":ssd_scan", "y", scanned);
  if (state.ssm_after.defined()) ctx.probe(":ssd_scan", "state_after", state.ssm_after);
  norm(ctx, scanned, scanned, gate);
  ctx.probe("norm", "out", scanned);
  Tensor normed = scanned;
  if (wide != dtype) {
    normed = ctx.take(dtype, {batch, tokens, inner});
    ctx.ops.cast(normed, scanned);
  }
  out_proj(ctx, out, normed);
  ctx.probe("", "out", out);
}

MambaState mamba_state(const BlockCall& call) {
  return {call.optional_input("conv_before"), call.optional_input("ssm_before"),
          call.optional_output("conv_after"), call.optional_output("ssm_after")};
}

void run_causal_conv1d(const BlockCall& call) {
  CausalConv1d::load(call.weights, call.params)(
      call.ctx, call.output("out"), call.optional_output("state_after"), call.input("x"),
      call.optional_input("state_before"), call.optional_input("token_valid"));
}

void run_ssd_scan(const BlockCall& call) {
  const SsdScan scan = SsdScan::load(call.weights, call.params);
  call.ctx.ops.ssd_scan(call.output("y"), call.optional_output("state_after"),
                        {call.input("x"), call.input("dt"), call.input("b"), call.input("c"),
                         scan.a_log, scan.d, scan.dt_bias, call.optional_input("state_before")},
                        scan.params);
}

void run_gated_rms_norm(const BlockCall& call) {
  GatedRmsNorm::load(call.weights, call.params)(call.ctx, call.output("out"), call.input("x"),
                                                call.input("gate"));
}

void run_mamba2_mixer(const BlockCall& call) {
  Mamba2Mixer::load(call.weights, call.params)(call.ctx, call.output("out"), call.input("hidden"),
                                               call.optional_input("token_valid"),
                                               mamba_state(call));
}

}  // namespace plumb::blocks
