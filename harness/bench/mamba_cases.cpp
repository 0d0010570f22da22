#include "blocks/mamba2.h"
#include "harness/bench/maker.h"

namespace plumb::harness {
namespace {

using Operands = BenchOperands;
using blocks::Context;
using Call = std::function<void(Context&)>;

// Sequences run in chunks from the start, single tokens in steps from a state.
struct Sizes {
  BenchMamba mamba;
  int64_t tokens;
  DType dtype, wide;
  bool step() const { return tokens == 1; }
  SsdParams params() const {
    SsdParams out;
    out.form = step() ? SsdForm::step : SsdForm::chunk;
    out.chunk_size = mamba.chunk_size;
    if (!step()) out.dt_min = 0.001;
    return out;
  }
};

BenchOperand vector(const BenchMaker& m, const char* name, int64_t length, double mean,
                    double deviation) {
  return {name, m.sizes.dtype, {length}, {Fill::normal, mean, deviation}};
}

std::vector<BenchOperand> head_weights(const BenchMaker& m, const BenchMamba& mamba) {
  return {vector(m, "A_log", mamba.heads, 0.7, 0.4), vector(m, "D", mamba.heads, 1, 0.3),
          vector(m, "dt_bias", mamba.heads, -2, 1)};
}

// The states before and after, of a step.
std::vector<BenchOperand> conv_states(const BenchMaker& m, const BenchMamba& mamba) {
  const Shape shape{1, mamba.mixed(), BenchMamba::kConvWidth};
  return {m.in("conv_before", shape), m.out("conv_after", shape)};
}
std::vector<BenchOperand> scan_states(const Sizes& s) {
  const Shape shape{1, s.mamba.heads, s.mamba.head_dim, s.mamba.state};
  return {{"ssm_before", s.wide, shape, {Fill::normal, 0, 1}},
          {"ssm_after", s.wide, shape, {}, true}};
}

Tensor find(const Operands& t, const char* name) { return t.count(name) ? t.at(name) : Tensor(); }

blocks::MambaState states(const Operands& t) {
  return {find(t, "conv_before"), find(t, "ssm_before"), find(t, "conv_after"),
          find(t, "ssm_after")};
}

BenchCase conv_case(const BenchMaker& m, const Sizes& s) {
  const Shape rows{1, s.tokens, s.mamba.mixed()};
  BenchCase out{"causal_conv1d",
                "causal_conv1d",
                {m.out("out", rows), m.in("x", rows),
                 m.in("weight", {s.mamba.mixed(), 1, BenchMamba::kConvWidth}, 0.5),
                 vector(m, "bias", s.mamba.mixed(), 0, 0.3)},
                [](const Operands& t) -> Call {
                  return [c = blocks::CausalConv1d{t.at("weight"), t.at("bias")}, state = states(t),
                          y = t.at("out"), x = t.at("x")](Context& ctx) {
                    c(ctx, y, state.conv_after, x, state.conv_before, {});
                  };
                }};
  if (s.step()) append(out.operands, conv_states(m, s.mamba));
  return out;
}

BenchCase scan_case(const BenchMaker& m, const Sizes& s) {
  const BenchMamba& mamba = s.mamba;
  const Shape x{1, s.tokens, mamba.heads, mamba.head_dim};
  const Shape vectors{1, s.tokens, mamba.groups, mamba.state};
  BenchCase out{"ssd_scan",
                "ssd_scan",
                {{"y", s.step() ? s.dtype : s.wide, x, {}, true},
                 m.in("x", x),
                 m.in("dt", {1, s.tokens, mamba.heads}),
                 m.in("b", vectors),
                 m.in("c", vectors)},
                [params = s.params()](const Operands& t) -> Call {
                  const SsdInputs in{t.at("x"),       t.at("dt"),           t.at("b"),
                                     t.at("c"),       t.at("A_log"),        t.at("D"),
                                     t.at("dt_bias"), find(t, "ssm_before")};
                  return [params, in, y = t.at("y"), after = find(t, "ssm_after")](Context& ctx) {
                    ctx.ops.ssd_scan(y, after, in, params);
                  };
                }};
  append(out.operands, head_weights(m, mamba));
  if (s.step()) append(out.operands, scan_states(s));
  return out;
}

BenchCase norm_case(const BenchMaker& m, const Sizes& s) {
  const Shape rows{1, s.tokens, s.mamba.inner()};
  const DType dtype = s.step() ? s.dtype : s.wide;
  return {"gated_rms_norm",
          "gated_rms_norm",
          {{"out", dtype, rows, {}, true},
           {"x", dtype, rows, {Fill::normal, 0, 1}},
           m.in("gate", rows),
           vector(m, "weight", s.mamba.inner(), 1, 0.2)},
          [group = s.mamba.inner() / s.mamba.groups](const Operands& t) -> Call {
            return [n = blocks::GatedRmsNorm{t.at("weight"), {1e-5, group}}, y = t.at("out"),
                    x = t.at("x"), gate = t.at("gate")](Context& ctx) { n(ctx, y, x, gate); };
          }};
}

BenchCase mixer_case(const BenchMaker& m, const Sizes& s) {
  const BenchMamba& mamba = s.mamba;
  BenchCase out{
      "mamba2_mixer",
      "mamba2_mixer",
      {m.out("out", m.hidden()), m.in("hidden", m.hidden()),
       m.weight("in_proj", mamba.inner() + mamba.mixed() + mamba.heads, m.shape.hidden),
       m.weight("out_proj", m.shape.hidden, mamba.inner()),
       m.in("conv_weight", {mamba.mixed(), 1, BenchMamba::kConvWidth}, 0.5),
       vector(m, "conv_bias", mamba.mixed(), 0, 0.3), vector(m, "norm", mamba.inner(), 1, 0.2)},
      [mamba, params = s.params()](const Operands& t) -> Call {
        blocks::Mamba2Mixer mixer;
        mixer.in_proj = {t.at("in_proj"), {}};
        mixer.out_proj = {t.at("out_proj"), {}};
        mixer.conv = {t.at("conv_weight"), t.at("conv_bias")};
        mixer.scan = {t.at("A_log"), t.at("D"), t.at("dt_bias"), params};
        mixer.norm = {t.at("norm"), {1e-5, mamba.inner() / mamba.groups}};
        mixer.heads = mamba.heads;
        mixer.head_dim = mamba.head_dim;
        mixer.groups = mamba.groups;
        mixer.columns = mamba.state;
        return [mixer, state = states(t), y = t.at("out"), x = t.at("hidden")](Context& ctx) {
          mixer(ctx, y, x, {}, state);
        };
      }};
  append(out.operands, head_weights(m, mamba));
  if (s.step()) {
    append(out.operands, conv_states(m, mamba));
    append(out.operands, scan_states(s));
  }
  return out;
}

}  // namespace

std::vector<BenchCase> mamba_cases(const BenchMaker& m) {
  if (!m.shape.mamba) return {};
  const DType dtype = m.sizes.dtype, wide = dtype == DType::f64 ? dtype : DType::f32;
  const Sizes sizes{*m.shape.mamba, m.sizes.tokens, dtype, wide};
  return {conv_case(m, sizes), scan_case(m, sizes), norm_case(m, sizes), mixer_case(m, sizes)};
}

}  // namespace plumb::harness
