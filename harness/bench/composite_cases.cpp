// Blocks made of several ops: MLP, attention, decoder layer.
#include "blocks/decoder_layer.h"
#include "harness/bench/maker.h"

namespace plumb::harness {
namespace {

using Operands = BenchOperands;
using blocks::Context;
using Call = std::function<void(Context&)>;
using Maker = BenchMaker;

std::vector<BenchOperand> mlp_weights(const Maker& m, const std::string& prefix) {
  const BenchShape& s = m.shape;
  return {m.weight(prefix + "gate_proj", s.intermediate, s.hidden),
          m.weight(prefix + "up_proj", s.intermediate, s.hidden),
          m.weight(prefix + "down_proj", s.hidden, s.intermediate)};
}

blocks::GluMlp make_mlp(const Operands& t, const std::string& prefix, Activation function) {
  const auto linear = [&](const char* name) { return blocks::Linear{t.at(prefix + name), {}}; };
  return {linear("gate_proj"), linear("up_proj"), linear("down_proj"), function};
}

std::vector<BenchOperand> attention_operands(const Maker& m, const std::string& prefix) {
  const BenchShape& s = m.shape;
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const Shape angles{1, m.sizes.tokens, s.head_dim};
  std::vector<BenchOperand> out = {m.weight(prefix + "q_proj", q, s.hidden),
                                   m.weight(prefix + "k_proj", kv, s.hidden),
                                   m.weight(prefix + "v_proj", kv, s.hidden),
                                   m.weight(prefix + "o_proj", s.hidden, q),
                                   m.in("cos", angles, 0.7),
                                   m.in("sin", angles, 0.7)};
  if (m.past() > 0) {
    out.push_back(m.in("keys_before", m.heads(s.kv_heads, m.past())));
    out.push_back(m.in("values_before", m.heads(s.kv_heads, m.past())));
  }
  return out;
}

blocks::Attention make_attention(const Maker& m, const Operands& t, const std::string& prefix) {
  const auto linear = [&](const char* name) { return blocks::Linear{t.at(prefix + name), {}}; };
  blocks::Attention out;
  out.q_proj = linear("q_proj");
  out.k_proj = linear("k_proj");
  out.v_proj = linear("v_proj");
  out.o_proj = linear("o_proj");
  out.head_dim = m.shape.head_dim;
  out.sdpa = {m.sdpa(), m.mask()};
  if (m.past() > 0) out.cache = blocks::KvCache{};
  return out;
}

blocks::KvState state_of(const Operands& t) {
  if (!t.count("keys_before")) return {};
  return {blocks::KvTensors{t.at("keys_before"), t.at("values_before"), {}, {}}};
}

}  // namespace

std::vector<BenchCase> composite_cases(const BenchMaker& m) {
  const BenchShape& s = m.shape;
  const std::vector<BenchOperand> ends = {m.out("out", m.hidden()), m.in("hidden", m.hidden())};
  BenchCase mlp{"glu_mlp", "glu_mlp", ends, [f = s.activation](const Operands& t) -> Call {
                  return [mlp = make_mlp(t, "", f), y = t.at("out"),
                          x = t.at("hidden")](Context& ctx) { mlp(ctx, y, x); };
                }};
  append(mlp.operands, mlp_weights(m, ""));
  BenchCase attention{"attention", "attention", ends, [m](const Operands& t) -> Call {
                        return [a = make_attention(m, t, ""), state = state_of(t), y = t.at("out"),
                                x = t.at("hidden"), c = t.at("cos"),
                                n = t.at("sin")](Context& ctx) { a(ctx, y, x, c, n, state); };
                      }};
  append(attention.operands, attention_operands(m, ""));
  BenchCase layer{
      "decoder_layer", "decoder_layer", ends, [m](const Operands& t) -> Call {
        const auto norm = [&](const char* name) {
          return t.count(name) ? blocks::RmsNorm{t.at(name), m.norm()} : blocks::RmsNorm{};
        };
        const blocks::DecoderLayer layer{
            norm("input_norm"),
            norm("post_attention_norm"),
            norm("pre_feedforward_norm"),
            norm("post_feedforward_norm"),
            make_attention(m, t, "self_attn."),
            make_mlp(t, "mlp.", m.shape.activation),
            m.shape.gemma ? blocks::LayerForm::sandwich : blocks::LayerForm::pre_norm};
        return [layer, state = state_of(t), y = t.at("out"), x = t.at("hidden"), c = t.at("cos"),
                n = t.at("sin")](Context& ctx) { layer(ctx, y, x, c, n, state); };
      }};
  append(layer.operands, attention_operands(m, "self_attn."));
  append(layer.operands, mlp_weights(m, "mlp."));
  append(layer.operands, {m.norm_weight("input_norm"), m.norm_weight("post_attention_norm")});
  if (s.gemma) {
    append(layer.operands,
           {m.norm_weight("pre_feedforward_norm"), m.norm_weight("post_feedforward_norm")});
  }
  return {std::move(mlp), std::move(attention), std::move(layer)};
}

}  // namespace plumb::harness
