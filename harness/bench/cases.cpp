#include "harness/bench/cases.h"

#include <cmath>

#include "blocks/embedding.h"
#include "blocks/lm_head.h"
#include "blocks/norms.h"
#include "blocks/sdpa.h"
#include "harness/bench/maker.h"

namespace plumb::harness {
namespace {

using Operands = BenchOperands;
using blocks::Context;
using Call = std::function<void(Context&)>;
using Cases = std::vector<BenchCase>;
using Maker = BenchMaker;

void add_rows(const Maker& m, Cases& out) {
  const BenchShape& s = m.shape;
  const double scale = s.gemma ? round_to(m.sizes.dtype, std::sqrt(s.hidden)) : 1;
  BenchOperand table = m.weight("weight", s.vocab, s.hidden);
  table.shared = true;
  out.push_back({"embedding",
                 "embedding",
                 {m.out("out", m.hidden()),
                  table,
                  {"ids", DType::i64, {1, m.sizes.tokens}, {Fill::ids, 0, 0, s.vocab}}},
                 [scale](const Operands& t) -> Call {
                   return [e = blocks::Embedding{t.at("weight"), scale}, y = t.at("out"),
                           ids = t.at("ids")](Context& ctx) { e(ctx, y, ids); };
                 }});
  out.push_back({"rms_norm",
                 "rms_norm",
                 {m.out("out", m.hidden()), m.in("x", m.hidden()), m.norm_weight("weight")},
                 [norm = m.norm()](const Operands& t) -> Call {
                   return [n = blocks::RmsNorm{t.at("weight"), norm}, y = t.at("out"),
                           x = t.at("x")](Context& ctx) { n(ctx, y, x); };
                 }});
  out.push_back({"add_rms_norm",
                 "add_rms_norm",
                 {m.out("sum", m.hidden()), m.out("out", m.hidden()), m.in("x", m.hidden()),
                  m.in("residual", m.hidden()), m.norm_weight("weight")},
                 [norm = m.norm()](const Operands& t) -> Call {
                   return [norm, sum = t.at("sum"), y = t.at("out"), x = t.at("x"),
                           r = t.at("residual"), w = t.at("weight")](Context& ctx) {
                     ctx.ops.add_rms_norm(sum, y, x, r, w, norm);
                   };
                 }});
  out.push_back({"layer_norm",
                 "layer_norm",
                 {m.out("out", m.hidden()), m.in("x", m.hidden()), m.norm_weight("weight"),
                  m.norm_weight("bias")},
                 [](const Operands& t) -> Call {
                   return [n = blocks::LayerNorm{t.at("weight"), t.at("bias"), 1e-5},
                           y = t.at("out"), x = t.at("x")](Context& ctx) { n(ctx, y, x); };
                 }});
  out.push_back({"add",
                 "add",
                 {m.out("out", m.hidden()), m.in("a", m.hidden()), m.in("b", m.hidden())},
                 [](const Operands& t) -> Call {
                   return [y = t.at("out"), a = t.at("a"), b = t.at("b")](Context& ctx) {
                     ctx.ops.add(y, a, b);
                   };
                 }});
}

void add_linear(const Maker& m, Cases& out) {
  const BenchShape& s = m.shape;
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const auto add = [&](const char* name, int64_t rows, int64_t columns) {
    out.push_back({"linear",
                   std::string("linear.") + name,
                   {m.out("out", {1, m.sizes.tokens, rows}),
                    m.in("x", {1, m.sizes.tokens, columns}), m.weight("weight", rows, columns)},
                   [](const Operands& t) -> Call {
                     return [l = blocks::Linear{t.at("weight"), {}}, y = t.at("out"),
                             x = t.at("x")](Context& ctx) { l(ctx, y, x); };
                   }});
  };
  add("q_proj", q, s.hidden);
  add("kv_proj", kv, s.hidden);
  add("o_proj", s.hidden, q);
  add("gate_proj", s.intermediate, s.hidden);
  add("down_proj", s.hidden, s.intermediate);
}

void add_rotary(const Maker& m, Cases& out) {
  const BenchShape& s = m.shape;
  const int64_t tokens = m.sizes.tokens;
  const Shape q = m.heads(s.heads, tokens), k = m.heads(s.kv_heads, tokens);
  const Shape angles{1, tokens, s.head_dim};
  out.push_back({"rotary_table",
                 "rotary_table",
                 {m.out("cos", angles),
                  m.out("sin", angles),
                  {"positions", DType::i64, {1, tokens}, {Fill::positions}},
                  {"inv_freq", DType::f32, {s.head_dim / 2}, {Fill::frequencies}}},
                 [](const Operands& t) -> Call {
                   return [c = t.at("cos"), n = t.at("sin"), p = t.at("positions"),
                           w = t.at("inv_freq")](Context& ctx) {
                     ctx.ops.rotary_table(c, n, p, w, 1);
                   };
                 }});
  out.push_back({"rotary",
                 "rotary",
                 {m.out("q_out", q), m.out("k_out", k), m.in("q", q), m.in("k", k),
                  m.in("cos", angles, 0.7), m.in("sin", angles, 0.7)},
                 [](const Operands& t) -> Call {
                   return [q_out = t.at("q_out"), k_out = t.at("k_out"), q = t.at("q"),
                           k = t.at("k"), c = t.at("cos"), n = t.at("sin")](Context& ctx) {
                     ctx.ops.rotary(q_out, q, c, n, RotaryStyle::half);
                     ctx.ops.rotary(k_out, k, c, n, RotaryStyle::half);
                   };
                 }});
}

// The parts of eager attention, as blocks of their own.
void add_attention_parts(const Maker& m, Cases& out) {
  const BenchShape& s = m.shape;
  const int64_t tokens = m.sizes.tokens, context = m.sizes.context;
  out.push_back({"causal_mask",
                 "causal_mask",
                 {m.out("mask", {1, 1, tokens, context})},
                 [mask = m.mask()](const Operands& t) -> Call {
                   return [mask, y = t.at("mask")](Context& ctx) { ctx.ops.causal_mask(y, mask); };
                 }});
  out.push_back({"repeat_kv",
                 "repeat_kv",
                 {m.out("out", m.heads(s.heads, context)), m.in("x", m.heads(s.kv_heads, context))},
                 [](const Operands& t) -> Call {
                   return [y = t.at("out"), x = t.at("x")](Context& ctx) {
                     ctx.ops.repeat_heads(y, x);
                   };
                 }});
  out.push_back({"matmul",
                 "matmul",
                 {m.out("out", m.scores()), m.in("a", m.heads(s.heads, tokens)),
                  m.in("b", m.heads(s.kv_heads, context))},
                 [](const Operands& t) -> Call {
                   return [y = t.at("out"), a = t.at("a"), b = t.at("b")](Context& ctx) {
                     ctx.ops.matmul(y, a, b, true);
                   };
                 }});
  out.push_back({"scale",
                 "scale",
                 {m.out("out", m.scores()), m.in("x", m.scores())},
                 [factor = m.sdpa().scale](const Operands& t) -> Call {
                   return [factor, y = t.at("out"), x = t.at("x")](Context& ctx) {
                     ctx.ops.scale(y, x, factor);
                   };
                 }});
  out.push_back(
      {"masked_add",
       "masked_add",
       {m.out("out", m.scores()), m.in("x", m.scores()), m.in("mask", {1, 1, tokens, context})},
       [](const Operands& t) -> Call {
         return [y = t.at("out"), x = t.at("x"), mask = t.at("mask")](Context& ctx) {
           ctx.ops.masked_add(y, x, mask);
         };
       }});
  out.push_back({"softmax",
                 "softmax",
                 {m.out("out", m.scores()), m.in("x", m.scores())},
                 [](const Operands& t) -> Call {
                   return [y = t.at("out"), x = t.at("x")](Context& ctx) { ctx.ops.softmax(y, x); };
                 }});
}

void add_sdpa(const Maker& m, Cases& out, const char* name, const AttentionMask& mask) {
  const BenchShape& s = m.shape;
  const Shape kv = m.heads(s.kv_heads, m.sizes.context);
  // Queries three times as long as keys: peaked probabilities, and scores that feel the softcap.
  out.push_back({"sdpa",
                 name,
                 {m.out("out", {1, m.sizes.tokens, s.heads, s.head_dim}),
                  m.in("q", m.heads(s.heads, m.sizes.tokens), 3), m.in("k", kv), m.in("v", kv)},
                 [mask, params = m.sdpa()](const Operands& t) -> Call {
                   return [sdpa = blocks::Sdpa{params, mask}, y = t.at("out"), q = t.at("q"),
                           k = t.at("k"), v = t.at("v")](Context& ctx) { sdpa(ctx, y, q, k, v); };
                 }});
}

void add_cache(const Maker& m, Cases& out) {
  const Shape fresh = m.heads(m.shape.kv_heads, m.sizes.tokens);
  const Shape all = m.heads(m.shape.kv_heads, m.sizes.context);
  BenchCase kv{
      "kv_cache",
      "kv_cache",
      {m.out("keys", all), m.out("values", all), m.in("k", fresh), m.in("v", fresh)},
      [](const Operands& t) -> Call {
        const auto before = [&](const char* name) { return t.count(name) ? t.at(name) : Tensor(); };
        return
            [k = t.at("k"), v = t.at("v"), keys = t.at("keys"), values = t.at("values"),
             old_keys = before("keys_before"), old_values = before("values_before")](Context& ctx) {
              const int64_t past = old_keys.defined() ? old_keys.dim(2) : 0, all = keys.dim(2);
              if (past > 0) {
                ctx.ops.copy_pair(keys.slice(2, 0, past), old_keys, values.slice(2, 0, past),
                                  old_values);
              }
              ctx.ops.copy_pair(keys.slice(2, past, all), k, values.slice(2, past, all), v);
            };
      }};
  if (m.past() > 0) {
    const Shape before = m.heads(m.shape.kv_heads, m.past());
    kv.operands.push_back(m.in("keys_before", before));
    kv.operands.push_back(m.in("values_before", before));
  }
  out.push_back(std::move(kv));
}

void add_activations(const Maker& m, Cases& out) {
  const Shape wide{1, m.sizes.tokens, m.shape.intermediate};
  out.push_back({"activation",
                 "activation",
                 {m.out("out", wide), m.in("x", wide)},
                 [f = m.shape.activation](const Operands& t) -> Call {
                   return [f, y = t.at("out"), x = t.at("x")](Context& ctx) {
                     ctx.ops.activation(y, x, f);
                   };
                 }});
  out.push_back({"glu_activation",
                 "glu_activation",
                 {m.out("out", wide), m.in("gate", wide), m.in("up", wide)},
                 [f = m.shape.activation](const Operands& t) -> Call {
                   return [f, y = t.at("out"), gate = t.at("gate"), up = t.at("up")](Context& ctx) {
                     ctx.ops.gated_activation(y, gate, up, f);
                   };
                 }});
}

// Logits of one token, as in generation.
void add_logits(const Maker& m, Cases& out) {
  const BenchShape& s = m.shape;
  const Shape logits{1, 1, s.vocab};
  out.push_back(
      {"lm_head",
       "lm_head",
       {m.out("out", logits), m.in("hidden", m.hidden()), m.weight("weight", s.vocab, s.hidden)},
       [cap = s.final_softcap](const Operands& t) -> Call {
         return [head = blocks::LmHead{{t.at("weight"), {}}, 1, cap}, y = t.at("out"),
                 x = t.at("hidden")](Context& ctx) { head(ctx, y, x); };
       }});
  const Shape all{1, m.sizes.tokens, s.vocab};
  if (!s.final_softcap) return;
  out.push_back({"softcap",
                 "softcap",
                 {m.out("out", all), m.in("x", all, 20)},
                 [cap = *s.final_softcap](const Operands& t) -> Call {
                   return [cap, y = t.at("out"), x = t.at("x")](Context& ctx) {
                     ctx.ops.softcap(y, x, cap);
                   };
                 }});
}

}  // namespace

std::vector<BenchCase> bench_cases(const BenchShape& shape, const BenchSizes& sizes) {
  const Maker m{shape, sizes};
  Cases out;
  add_rows(m, out);
  add_linear(m, out);
  add_rotary(m, out);
  add_cache(m, out);
  add_attention_parts(m, out);
  add_sdpa(m, out, "sdpa", m.mask());
  if (shape.window && sizes.context > *shape.window) {
    AttentionMask mask = m.mask();
    mask.window = shape.window;
    add_sdpa(m, out, "sdpa.window", mask);
  }
  add_activations(m, out);
  for (BenchCase& one : composite_cases(m)) out.push_back(std::move(one));
  for (BenchCase& one : mamba_cases(m)) out.push_back(std::move(one));
  add_logits(m, out);
  for (BenchCase& one : component_cases(m)) out.push_back(std::move(one));
  for (BenchCase& one : op_cases(m)) out.push_back(std::move(one));
  return out;
}

}  // namespace plumb::harness
