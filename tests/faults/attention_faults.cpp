// Faults of attention with its projections, rotary embedding and cache.
#include <cmath>

#include "tests/faults/cache_copies.h"
#include "tests/faults/mask_faults.h"

namespace plumb::harness::testing {
namespace {

constexpr int kQuery = 0, kKey = 1, kValue = 2, kOutput = 3;  // linear calls, in order

Fault linear_fault(const char* name,
                   const std::function<void(Call&, const Tensor& out, const Tensor& x,
                                            const Tensor& w, const Tensor& b)>& run,
                   bool narrow_only = false) {
  return {
      "attention",
      name,
      {.linear = [run](Call& c, auto& out, auto& x, auto& w, auto& b) { run(c, out, x, w, b); }},
      narrow_only};
}

Fault projection_fault(const char* name, int which, const LinearSpec& spec) {
  return linear_fault(name, [=](Call& c, auto& out, auto& x, auto& w, auto& b) {
    if (c.index == which) wrong_linear(out, x, w, b, spec);
    else c.ops.linear(out, x, w, b);
  });
}

Fault sdpa_fault(const char* name,
                 const std::function<void(const Tensor& q, AttentionMask&, SdpaParams&)>& change) {
  return {"attention",
          name,
          {.sdpa = [change](Call& c, auto& out, auto& q, auto& k, auto& v, AttentionMask m,
                            SdpaParams p) {
            change(q, m, p);
            c.ops.sdpa(out, q, k, v, m, p);
          }}};
}

Fault spec_fault(const char* name, const AttentionSpec& spec) {
  return {"attention",
          name,
          {.sdpa = [spec](Call& c, auto& out, auto& q, auto& k, auto& v, auto& m, auto& p) {
            wrong_sdpa(c.ops, out, q, k, v, m, p, spec);
          }}};
}

Fault rotary_fault(const char* name, const std::function<bool(int index)>& rotates,
                   bool other_style) {
  return {"attention",
          name,
          {.rotary = [=](Call& c, auto& out, auto& x, auto& cos, auto& sin, RotaryStyle style) {
            const RotaryStyle other =
                style == RotaryStyle::half ? RotaryStyle::interleaved : RotaryStyle::half;
            if (rotates(c.index)) c.ops.rotary(out, x, cos, sin, other_style ? other : style);
            else c.ops.copy(out, x);
          }}};
}

// Keys reach the cache as they were before the rotation.
Hooks keys_appended_before_rotary() {
  Hooks hooks;
  hooks.rotary = [](Call& c, auto& out, auto& x, auto& cos, auto& sin, RotaryStyle style) {
    if (c.index == kKey) c.kept["plain keys"] = copied(c.ops, x);
    c.ops.rotary(out, x, cos, sin, style);
  };
  hooks.copy = [](Call& c, auto& out, auto& x) {
    const CacheCopy copy = cache_copy(c, out, x);
    const bool keys = copy.role == CopyRole::fresh && !copy.values;
    c.ops.copy(out, keys ? c.kept.at("plain keys") : x);
  };
  return hooks;
}

// Stored keys are rotated again, by the first new token's angle.
Hooks stored_keys_rotated_again() {
  Hooks hooks;
  hooks.rotary = [](Call& c, auto& out, auto& x, auto& cos, auto& sin, RotaryStyle style) {
    c.kept["cos"] = cos.slice(1, 0, 1);
    c.kept["sin"] = sin.slice(1, 0, 1);
    c.ops.rotary(out, x, cos, sin, style);
  };
  hooks.copy = [](Call& c, auto& out, auto& x) {
    const CacheCopy copy = cache_copy(c, out, x);
    if (copy.role != CopyRole::before || copy.values) return c.ops.copy(out, x);
    for (int64_t s = 0; s < x.dim(2); ++s) {
      c.ops.rotary(out.slice(2, s, s + 1), x.slice(2, s, s + 1), c.kept.at("cos"), c.kept.at("sin"),
                   RotaryStyle::half);
    }
  };
  return hooks;
}

// The window's slots only: what the cache will keep, instead of everything that is there.
Hooks evicted_before_attention() {
  return {.sdpa = [](Call& c, auto& out, auto& q, auto& k, auto& v, AttentionMask m, auto& p) {
    const int64_t slots = k.dim(2), kept = m.window ? std::min(*m.window - 1, slots) : slots;
    m.key_offset += slots - kept;
    if (m.key_valid.defined()) {
      const Tensor all = m.key_valid;
      m.key_valid = copied(c.ops, all.slice(1, slots - kept, slots));
    }
    if (m.explicit_mask.defined()) return c.ops.sdpa(out, q, k, v, m, p);
    c.ops.sdpa(out, q, k.slice(2, slots - kept, slots), v.slice(2, slots - kept, slots), m, p);
  }};
}

Hooks cache_copies(CopyRole role, bool zero) {
  return {.copy = [=](Call& c, auto& out, auto& x) {
    const CacheCopy copy = cache_copy(c, out, x);
    if (copy.role == CopyRole::before) c.kept[copy.values ? "old values" : "old keys"] = x;
    if (copy.role != role || (!zero && copy.past == 0)) return c.ops.copy(out, x);
    if (zero) return clear_slots(out, 0, out.dim(2));
    copy_slots(copy.all, 0, x, 0, x.dim(2));  // new ones first
    copy_slots(copy.all, x.dim(2), c.kept.at(copy.values ? "old values" : "old keys"), 0,
               copy.past);
  }};
}

void heads_not_merged(Call& c, const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                      const AttentionMask& m, const SdpaParams& p) {
  c.ops.sdpa(out, q, k, v, m, p);
  put(out, values_of(copied(c.ops, out.transpose(1, 2))));
}

}  // namespace

std::vector<Fault> attention_faults() {
  std::vector<Fault> out = {
      projection_fault("query bias dropped", kQuery, {.bias = 0}),
      projection_fault("key: last term dropped", kKey, {.dropped = 1}),
      projection_fault("value: operands in bf16", kValue, {.multiply = DType::bf16}),
      projection_fault("output: last four terms dropped", kOutput, {.dropped = 4}),
      projection_fault("output bias added twice", kOutput, {.bias = 2}),
      linear_fault("values projected with the keys' weights",
                   [](Call& c, auto& out, auto& x, auto& w, auto& b) {
                     if (c.index == kKey) c.kept["keys' weight"] = w;
                     c.ops.linear(out, x, c.index == kValue ? c.kept.at("keys' weight") : w, b);
                   }),
      rotary_fault(
          "queries not rotated", [](int i) { return i == kKey; }, false),
      rotary_fault(
          "keys not rotated", [](int i) { return i == kQuery; }, false),
      rotary_fault(
          "halves for pairs and pairs for halves", [](int) { return true; }, true),
      {"attention", "keys cached before the rotation", keys_appended_before_rotary()},
      {"attention", "cached keys rotated again", stored_keys_rotated_again()},
      {"attention", "evicted before attention saw them", evicted_before_attention()},
      {"attention", "cached slots lost", cache_copies(CopyRole::before, true)},
      {"attention", "new slots before the cached ones", cache_copies(CopyRole::fresh, false)},
      {"attention", "state not written", cache_copies(CopyRole::keep, true)},
      sdpa_fault("scale 1 % too large", [](auto&, auto&, SdpaParams& p) { p.scale *= 1.01; }),
      sdpa_fault("scale of the head's width for the configured one",
                 [](auto& q, auto&, SdpaParams& p) {
                   p.scale = 1 / std::sqrt(static_cast<double>(q.dim(3)));
                 }),
      sdpa_fault("softcap missing", [](auto&, auto&, SdpaParams& p) { p.softcap.reset(); }),
      spec_fault("softcap after the mask", {.cap = AttentionSpec::Cap::after_mask}),
      spec_fault("heads tiled instead of repeated", {.tiled_heads = true}),
      {"attention",
       "heads merged without a transpose",
       {.sdpa = [](Call& c, auto& out, auto& q, auto& k, auto& v, auto& m,
                   auto& p) { heads_not_merged(c, out, q, k, v, m, p); }}},
  };
  for (const auto& [name, change] : mask_edits()) {
    out.push_back(sdpa_fault(name, [change](auto&, AttentionMask& m, auto&) { change(m); }));
  }
  return out;
}

}  // namespace plumb::harness::testing
