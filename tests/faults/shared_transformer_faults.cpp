// Faults of the shared transformer, its adapters, and the layer around it.
#include <algorithm>
#include <array>

#include "tests/faults/mask_faults.h"
#include "tests/faults/wrong_ops.h"

namespace plumb::harness::testing {
namespace {

// The first two copies make hidden ++ original.
Hooks concatenated(const std::function<void(Call&, const Tensor& first, const Tensor& second,
                                            const Tensor& hidden, const Tensor& original)>& run) {
  return {.copy = [run](Call& c, auto& out, auto& x) {
    if (c.index == 0) {
      c.kept["first"] = out;
      c.kept["hidden"] = copied(c.ops, x);
    }
    if (c.index == 1) return run(c, c.kept.at("first"), out, c.kept.at("hidden"), x);
    c.ops.copy(out, x);
  }};
}

Hooks norm_skipped(int which) {
  return {.rms_norm = [which](Call& c, auto& out, auto& x, auto& w, auto& p) {
    if (c.index == which) c.ops.copy(out, x);
    else c.ops.rms_norm(out, x, w, p);
  }};
}

// Attention's output plus the hidden states.
Hooks residual_inside() {
  Hooks hooks = concatenated(
      [](Call& c, auto&, auto& second, auto&, auto& original) { c.ops.copy(second, original); });
  hooks.rms_norm = [](Call& c, auto& out, auto& x, auto& w, auto& p) {
    if (c.index == 1) c.ops.add(x, x, c.kept.at("hidden"));
    c.ops.rms_norm(out, x, w, p);
  };
  return hooks;
}

// Adapters are added to projections: three before attention, one behind it.
Hooks adapters_skipped(bool of_attention) {
  Hooks hooks;
  hooks.sdpa = [](Call& c, auto& out, auto& q, auto& k, auto& v, auto& m, auto& p) {
    c.kept["attended"] = out;
    c.ops.sdpa(out, q, k, v, m, p);
  };
  hooks.add = [of_attention](Call& c, auto& out, auto& a, auto& b) {
    const bool before = c.kept.count("attended") == 0, of_mlp = !before && !c.kept.count("mlp");
    if (!before) c.kept["mlp"] = out;
    if (of_attention ? before : of_mlp) c.ops.copy(out, a);
    else c.ops.add(out, a, b);
  };
  return hooks;
}

Hooks gated(const std::function<void(Call&, const Tensor& out, const Tensor& gate, const Tensor& up,
                                     Activation)>& run) {
  return {.gated_activation = [run](Call& c, auto& out, auto& gate, auto& up, Activation f) {
    run(c, out, gate, up, f);
  }};
}

Fault sdpa_fault(const char* block, const std::string& name,
                 const std::function<void(AttentionMask&, SdpaParams&)>& change) {
  return {block,
          name,
          {.sdpa = [change](Call& c, auto& out, auto& q, auto& k, auto& v, AttentionMask m,
                            SdpaParams p) {
            change(m, p);
            c.ops.sdpa(out, q, k, v, m, p);
          }}};
}

std::vector<Fault> transformer_faults(const char* block) {
  return {
      {block, "original before hidden",
       concatenated([](Call& c, auto& first, auto& second, auto& hidden, auto& original) {
         c.ops.copy(first, original);
         c.ops.copy(second, hidden);
       })},
      {block, "hidden for original",
       concatenated(
           [](Call& c, auto&, auto& second, auto& hidden, auto&) { c.ops.copy(second, hidden); })},
      {block, "norm of the input skipped", norm_skipped(0)},
      {block, "norm before the MLP skipped", norm_skipped(1)},
      {block, "residual inside", residual_inside()},
      {block, "attention adapters skipped", adapters_skipped(true)},
      {block, "MLP adapter skipped", adapters_skipped(false)},
      {block, "gate and up exchanged",
       gated([](Call& c, auto& out, auto& gate, auto& up, Activation f) {
         c.ops.gated_activation(out, up, gate, f);
       })},
      {block, "tanh for erf", gated([](Call& c, auto& out, auto& gate, auto& up, Activation) {
         c.ops.gated_activation(out, gate, up, Activation::gelu_tanh);
       })},
      {block,
       "not rotated",
       {.rotary = [](Call& c, auto& out, auto& x, auto&, auto&, auto) { c.ops.copy(out, x); }}},
      sdpa_fault(block, "scale of the whole head's width",
                 [](AttentionMask&, SdpaParams& p) { p.scale *= 0.70710678118654752; }),
      sdpa_fault(block, "not causal",
                 [](AttentionMask& m, SdpaParams&) {
                   m.causal = false;
                   m.explicit_mask = {};
                 }),
  };
}

// hidden + transformer + mixer instead of hidden + mixer.
Hooks residual_with_transformer() {
  Hooks hooks;
  hooks.ssd_scan = [](Call& c, auto& y, auto& after, auto& in, auto& p) {
    c.kept["scanned"] = y;
    c.ops.ssd_scan(y, after, in, p);
  };
  hooks.add = [](Call& c, auto& out, auto& a, auto& b) {
    if (c.kept.count("scanned")) return c.ops.add(out, c.kept.at("sum"), b);
    c.ops.add(out, a, b);
    c.kept["sum"] = copied(c.ops, out);
  };
  return hooks;
}

// The transformer's output as it is, without the layer's projection.
Hooks projection_skipped() {
  Hooks hooks;
  hooks.gated_activation = [](Call& c, auto& out, auto& gate, auto& up, Activation f) {
    c.kept["gated"] = out;
    c.ops.gated_activation(out, gate, up, f);
  };
  hooks.linear = [](Call& c, auto& out, auto& x, auto& w, auto& b) {
    const bool projects = c.kept.count("gated") && w.dim(0) == w.dim(1);
    if (projects) c.ops.copy(out, x);
    else c.ops.linear(out, x, w, b);
  };
  return hooks;
}

}  // namespace

std::vector<Fault> low_rank_adapter_faults() {
  std::vector<Fault> out;
  for (Fault fault : linear_faults()) {
    const bool about_bias = fault.name.find("bias") != std::string::npos;
    if (about_bias || fault.name == "weight transposed") continue;
    fault.block = "low_rank_adapter";
    out.push_back(std::move(fault));
  }
  out.push_back({"low_rank_adapter",
                 "an activation between the products",
                 {.linear = [](Call& c, auto& y, auto& x, auto& w, auto& b) {
                   c.ops.linear(y, x, w, b);
                   if (c.index == 0) c.ops.activation(y, y, Activation::silu);
                 }}});
  return out;
}

std::vector<Fault> shared_transformer_faults() { return transformer_faults("shared_transformer"); }

std::vector<Fault> hybrid_layer_faults() {
  const char* block = "hybrid_layer";
  std::vector<Fault> out = transformer_faults(block);
  for (Fault& fault : mamba_faults_of_layer(block)) out.push_back(std::move(fault));
  out.push_back({block, "residual with the transformer's output", residual_with_transformer()});
  out.push_back({block, "projection of the transformer's output skipped", projection_skipped()});
  return out;
}

}  // namespace plumb::harness::testing
