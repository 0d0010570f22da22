// Faults of a decoder layer: residuals, norms and their order, and what reaches the parts.
#include <cmath>

#include "tests/faults/mask_faults.h"

namespace plumb::harness::testing {
namespace {

const char* const kBlock = "decoder_layer";

// Calls of add: 0 the residual around attention (branch + hidden), 1 around the MLP (middle +
// branch). Calls of rms_norm: LLaMA 0 input, 1 post-attention; Gemma 0 input, 1 post-attention, 2
// before and 3 behind the MLP. add_rms_norm runs composed.
using Add = std::function<void(Call&, const Tensor& out, const Tensor& a, const Tensor& b)>;

Fault add_fault(const char* name, int which, const Add& run) {
  return {kBlock, name, {.add = [=](Call& c, auto& out, auto& a, auto& b) {
            c.index == which ? run(c, out, a, b) : c.ops.add(out, a, b);
          }}};
}

bool is_gemma(const RmsNormParams& p) { return p.weight_offset == 1; }

Fault norm_skipped(const char* name, int llama, int gemma) {
  return {kBlock, name, {.rms_norm = [=](Call& c, auto& out, auto& x, auto& w, auto& p) {
            if (c.index == (is_gemma(p) ? gemma : llama)) c.ops.copy(out, x);
            else c.ops.rms_norm(out, x, w, p);
          }}};
}

Fault norm_params(const char* name, const std::function<void(RmsNormParams&)>& change) {
  return {
      kBlock, name, {.rms_norm = [change](Call& c, auto& out, auto& x, auto& w, RmsNormParams p) {
        change(p);
        c.ops.rms_norm(out, x, w, p);
      }}};
}

// Norm 1 with the weight of norm 0.
Hooks norm_weights_mixed_up() {
  return {.rms_norm = [](Call& c, auto& out, auto& x, auto& w, auto& p) {
    if (c.index == 0) c.kept["weight"] = w;
    c.ops.rms_norm(out, x, c.index == 1 ? c.kept.at("weight") : w, p);
  }};
}

// Gemma: norm(hidden + attention) instead of hidden + norm(attention).
Hooks normed_after_the_residual() {
  Hooks hooks;
  hooks.rms_norm = [](Call& c, auto& out, auto& x, auto& w, RmsNormParams p) {
    if (!is_gemma(p) || c.index != 1) return c.ops.rms_norm(out, x, w, p);
    c.kept["weight"] = w;
    c.ops.copy(out, x);
  };
  hooks.add = [](Call& c, auto& out, auto& a, auto& b) {
    c.ops.add(out, a, b);
    if (c.index > 0 || !c.kept.count("weight")) return;
    c.ops.rms_norm(out, out, c.kept.at("weight"), {1e-6, 1, WeightRounding::after});
  };
  return hooks;
}

Hooks residual_of_the_normed() {
  Hooks hooks;
  hooks.rms_norm = [](Call& c, auto& out, auto& x, auto& w, auto& p) {
    c.ops.rms_norm(out, x, w, p);
    if (c.index == 0) c.kept["normed"] = copied(c.ops, out);
  };
  hooks.add = [](Call& c, auto& out, auto& a, auto& b) {
    c.ops.add(out, a, c.index == 0 ? c.kept.at("normed") : b);
  };
  return hooks;
}

// hidden + MLP: what attention added is lost.
Hooks second_residual_from_the_input() {
  Hooks hooks;
  hooks.rms_norm = [](Call& c, auto& out, auto& x, auto& w, auto& p) {
    if (c.index == 0) c.kept["hidden"] = copied(c.ops, x);
    c.ops.rms_norm(out, x, w, p);
  };
  hooks.add = [](Call& c, auto& out, auto& a, auto& b) {
    c.ops.add(out, c.index == 1 ? c.kept.at("hidden") : a, b);
  };
  return hooks;
}

Fault sdpa_fault(const char* name,
                 const std::function<void(const Tensor& q, AttentionMask&, SdpaParams&)>& change) {
  return {kBlock,
          name,
          {.sdpa = [change](Call& c, auto& out, auto& q, auto& k, auto& v, AttentionMask m,
                            SdpaParams p) {
            change(q, m, p);
            c.ops.sdpa(out, q, k, v, m, p);
          }}};
}

Hooks gated(const std::function<void(Call&, const Tensor& out, const Tensor& gate, const Tensor& up,
                                     Activation)>& run) {
  return {.gated_activation = [run](Call& c, auto& out, auto& gate, auto& up, Activation f) {
    run(c, out, gate, up, f);
  }};
}

Hooks linear_spec(int which, const LinearSpec& spec) {
  return {.linear = [=](Call& c, auto& out, auto& x, auto& w, auto& b) {
    if (c.index == which) wrong_linear(out, x, w, b, spec);
    else c.ops.linear(out, x, w, b);
  }};
}

Hooks not_rotated() {
  return {.rotary = [](Call& c, auto& out, auto& x, auto&, auto&, auto) { c.ops.copy(out, x); }};
}

void other_gelu(Call& c, const Tensor& out, const Tensor& gate, const Tensor& up, Activation f) {
  c.ops.gated_activation(out, gate, up, f == Activation::gelu_tanh ? Activation::gelu : f);
}

}  // namespace

std::vector<Fault> decoder_layer_faults() {
  const auto only_first = [](Call& c, auto& out, auto& a, auto&) { c.ops.copy(out, a); };
  const auto only_second = [](Call& c, auto& out, auto&, auto& b) { c.ops.copy(out, b); };
  const auto first_twice = [](Call& c, auto& out, auto& a, auto& b) {
    const Tensor once = copied(c.ops, a);
    c.ops.add(out, once, b);
    c.ops.add(out, out, once);
  };
  const auto second_twice = [](Call& c, auto& out, auto& a, auto& b) {
    const Tensor once = copied(c.ops, b);
    c.ops.add(out, a, once);
    c.ops.add(out, out, once);
  };
  std::vector<Fault> out = {
      add_fault("residual missing around attention", 0, only_first),
      add_fault("residual missing around the MLP", 1, only_second),
      add_fault("attention's output lost", 0, only_second),
      add_fault("MLP's output lost", 1, only_first),
      add_fault("residual twice around attention", 0, second_twice),
      add_fault("residual twice around the MLP", 1, first_twice),
      {kBlock, "residual of the normed input", residual_of_the_normed()},
      {kBlock, "second residual from the layer's input", second_residual_from_the_input()},
      norm_skipped("input norm skipped", 0, 0),
      norm_skipped("norm before the MLP skipped", 1, 2),
      norm_skipped("norm behind attention skipped (sandwich)", -1, 1),
      norm_skipped("norm behind the MLP skipped (sandwich)", -1, 3),
      {kBlock, "norm weights mixed up", norm_weights_mixed_up()},
      {kBlock, "normed after the residual (sandwich)", normed_after_the_residual()},
      norm_params("eps 100 times too large", [](RmsNormParams& p) { p.eps *= 100; }),
      norm_params("1 + w for w and the reverse",
                  [](RmsNormParams& p) { p.weight_offset = 1 - p.weight_offset; }),
      {kBlock, "gate and up exchanged",
       gated([](Call& c, auto& out, auto& gate, auto& up, Activation f) {
         c.ops.gated_activation(out, up, gate, f);
       })},
      {kBlock, "erf for tanh", gated(other_gelu)},
      {kBlock, "MLP: last term of down dropped", linear_spec(6, {.dropped = 1})},
      {kBlock, "attention: last term of the output dropped", linear_spec(3, {.dropped = 1})},
      {kBlock, "not rotated", not_rotated()},
      {kBlock,
       "heads tiled instead of repeated",
       {.sdpa = [](Call& c, auto& out, auto& q, auto& k, auto& v, auto& m,
                   auto& p) { wrong_sdpa(c.ops, out, q, k, v, m, p, {.tiled_heads = true}); }}},
      sdpa_fault("scale 1 % too large", [](auto&, auto&, SdpaParams& p) { p.scale *= 1.01; }),
      sdpa_fault("softcap missing", [](auto&, auto&, SdpaParams& p) { p.softcap.reset(); }),
  };
  for (const auto& [name, change] : mask_edits()) {
    out.push_back(sdpa_fault(name, [change](auto&, AttentionMask& m, auto&) { change(m); }));
  }
  return out;
}

}  // namespace plumb::harness::testing
