// Mamba2's blocks (Dao and Gu 2024) as Zamba2MambaMixer computes them.
#pragma once

#include "blocks/linear.h"

namespace plumb::blocks {

// Depthwise causal convolution, activation, padding zeroed. x [B, T, C] -> out [B, T, C].
struct CausalConv1d {
  Tensor weight;  // [C, 1, K]
  Tensor bias;    // [C]
  Activation function = Activation::silu;

  static CausalConv1d load(const Weights& weights, const Params& params);
  // States [B, C, K] and token_valid [B, T] may be undefined.
  void operator()(Context& ctx, const Tensor& out, const Tensor& state_after, const Tensor& x,
                  const Tensor& state_before, const Tensor& token_valid) const;
};

// The state space scan. x [B, T, H, P], dt [B, T, H], b, c [B, T, G, N] -> y [B, T, H, P].
struct SsdScan {
  Tensor a_log, d, dt_bias;  // [H]
  SsdParams params;

  static SsdScan load(const Weights& weights, const Params& params);
};

// RMSNorm of x silu(gate) over groups of channels. x, gate [..., C] -> out [..., C].
struct GatedRmsNorm {
  Tensor weight;  // [C]
  GatedRmsNormParams params;

  static GatedRmsNorm load(const Weights& weights, const Params& params);
  void operator()(Context& ctx, const Tensor& out, const Tensor& x, const Tensor& gate) const {
    ctx.ops.gated_rms_norm(out, x, gate, weight, params);
  }
};

// Convolution and scan states of one layer before and after a call. `before` is undefined at the
// start of a sequence, `after` when it is not asked for.
struct MambaState {
  Tensor conv_before, ssm_before;
  Tensor conv_after, ssm_after;
  bool step = false;  // the step form, whatever the scan's own
};

// in_proj, split into gate, convolved x b c, and dt; convolution, scan, gated norm, out_proj.
// hidden [B, T, C] -> out [B, T, C]; token_valid bool [B, T] or undefined.
struct Mamba2Mixer {
  Linear in_proj, out_proj;
  CausalConv1d conv;
  SsdScan scan;
  GatedRmsNorm norm;
  int64_t heads = 0, head_dim = 0, groups = 0, columns = 0;

  static Mamba2Mixer load(const Weights& weights, const Params& params);
  void operator()(Context& ctx, const Tensor& out, const Tensor& hidden, const Tensor& token_valid,
                  const MambaState& state) const;
};

// The state operands of a call that has them.
MambaState mamba_state(const BlockCall& call);

void run_causal_conv1d(const BlockCall& call);
void run_ssd_scan(const BlockCall& call);
void run_gated_rms_norm(const BlockCall& call);
void run_mamba2_mixer(const BlockCall& call);

}  // namespace plumb::blocks
