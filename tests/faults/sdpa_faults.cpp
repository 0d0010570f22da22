#include <algorithm>
#include <cmath>

#include "tests/faults/mask_faults.h"

namespace plumb::harness::testing {
namespace {

struct Operands {
  Tensor out, q, k, v;
  AttentionMask mask;
  SdpaParams params;
};

// Right attention, `after` something was changed.
Fault operands_fault(const char* name, const std::function<void(Call&, Operands&)>& change) {
  return {"sdpa",
          name,
          {.sdpa = [change](Call& c, auto& out, auto& q, auto& k, auto& v, auto& m, auto& p) {
            Operands o{out, q, k, v, m, p};
            change(c, o);
            c.ops.sdpa(o.out, o.q, o.k, o.v, o.mask, o.params);
          }}};
}

Fault spec_fault(const char* name, const AttentionSpec& spec) {
  return {"sdpa",
          name,
          {.sdpa = [spec](Call& c, auto& out, auto& q, auto& k, auto& v, auto& m, auto& p) {
            wrong_sdpa(c.ops, out, q, k, v, m, p, spec);
          }}};
}

Fault params_fault(const char* name,
                   const std::function<void(SdpaParams&, double head_dim)>& change) {
  return operands_fault(
      name, [change](Call&, Operands& o) { change(o.params, static_cast<double>(o.q.dim(3))); });
}

Fault rule_fault(const MaskRule& rule) {
  return operands_fault(rule.name, [rule](Call& c, Operands& o) {
    if (o.mask.explicit_mask.defined()) return;
    const FullyMasked fully_masked = o.mask.fully_masked;
    const Tensor allowed = mask_by(c.ops, o.mask, o.q.dim(2), o.k.dim(2), rule.allowed);
    o.mask = {};
    o.mask.fully_masked = fully_masked;
    o.mask.explicit_mask = allowed;
  });
}

// [B, T, H, D] filled as if it were [B, H, T, D].
void heads_not_merged(Call& c, const Operands& o) {
  c.ops.sdpa(o.out, o.q, o.k, o.v, o.mask, o.params);
  put(o.out, values_of(copied(c.ops, o.out.transpose(1, 2))));
}

// Rows [B, H, S, D] of the last slot copied from the one before.
void last_slot_stale(Values& v, const Tensor& t) {
  const auto slots = static_cast<size_t>(t.dim(2)), width = static_cast<size_t>(t.dim(3));
  if (slots < 2) return;
  for (size_t i = 0; i < v.size(); ++i) {
    if (i / width % slots == slots - 1) v[i] = v[i - width];
  }
}

void mask_faults(std::vector<Fault>& out) {
  for (const auto& [name, change] : mask_edits()) {
    out.push_back(operands_fault(name, [change](Call&, Operands& o) { change(o.mask); }));
  }
  for (const MaskRule& rule : mask_rules()) out.push_back(rule_fault(rule));
  out.push_back(operands_fault("explicit mask ignored",
                               [](Call&, Operands& o) { o.mask.explicit_mask = {}; }));
  out.push_back(operands_fault("explicit mask of the first head for all", [](Call&, Operands& o) {
    if (o.mask.explicit_mask.defined()) o.mask.explicit_mask = o.mask.explicit_mask.slice(1, 0, 1);
  }));
  out.push_back(
      operands_fault("explicit mask of the first batch row for all", [](Call&, Operands& o) {
        if (o.mask.explicit_mask.defined())
          o.mask.explicit_mask = o.mask.explicit_mask.slice(0, 0, 1);
      }));
  out.push_back(operands_fault("rows without keys: uniform for zero", [](Call&, Operands& o) {
    if (o.mask.fully_masked == FullyMasked::zero) o.mask.fully_masked = FullyMasked::uniform;
  }));
  out.push_back(operands_fault("rows without keys: zero for uniform", [](Call&, Operands& o) {
    if (o.mask.fully_masked == FullyMasked::uniform) o.mask.fully_masked = FullyMasked::zero;
  }));
  out.push_back(spec_fault("rows without keys: NaN", {.nan_without_keys = true}));
}

// Composed, with HF's eager rounding points: what is wrong is where something is rounded.
Hooks scale_folded_into_queries() {
  Hooks hooks;
  hooks.matmul = [](Call& c, auto& out, auto& a, auto& b, bool transpose) {
    if (c.index == 0) c.kept["q"] = a, c.kept["k"] = b;
    c.ops.matmul(out, a, b, transpose);
  };
  hooks.scale = [](Call& c, auto& out, auto& x, double factor, ScaleOperation operation) {
    if (c.index > 0 || !c.kept.count("q")) return c.ops.scale(out, x, factor, operation);
    const Tensor q = mapped(c.ops, c.kept.at("q"), [&](double v) { return v * factor; });
    c.ops.matmul(out, q, c.kept.at("k"), true);
  };
  return hooks;
}

Hooks probabilities_not_rounded() {
  Hooks hooks;
  hooks.softmax = [](Call& c, auto& out, auto& x) {
    const Tensor wide = fresh(c.ops, DType::f64, x.shape());
    Values v = values_of(x);
    const auto n = static_cast<size_t>(x.dim(-1));
    for (size_t row = 0; row < v.size(); row += n) {
      double largest = v[row], sum = 0;
      for (size_t i = 0; i < n; ++i) largest = std::fmax(largest, v[row + i]);
      for (size_t i = 0; i < n; ++i) sum += v[row + i] = std::exp(v[row + i] - largest);
      for (size_t i = 0; i < n; ++i) v[row + i] /= sum;
    }
    put(wide, v);
    c.kept["probabilities"] = wide;
    c.ops.softmax(out, x);
  };
  hooks.matmul = [](Call& c, auto& out, auto& a, auto& b, bool transpose) {
    if (!c.kept.count("probabilities")) return c.ops.matmul(out, a, b, transpose);
    const Tensor sums = fresh(c.ops, DType::f64, {out.dim(0), out.dim(1), out.dim(2), out.dim(3)});
    const Values p = values_of(c.kept.at("probabilities")), v = values_of(b);
    const auto keys = static_cast<size_t>(a.dim(3)), width = static_cast<size_t>(out.dim(3));
    const auto rows = static_cast<size_t>(a.dim(2)),
               group = static_cast<size_t>(a.dim(1) / b.dim(1));
    Values result(static_cast<size_t>(out.numel()), 0.0);
    for (size_t i = 0; i < result.size(); ++i) {
      const size_t row = i / width, head = row / rows / group;
      for (size_t s = 0; s < keys; ++s) {
        result[i] += p[row * keys + s] * v[(head * keys + s) * width + i % width];
      }
    }
    put(out, result);
  };
  return hooks;
}

Hooks scores_truncated() {
  return {.matmul = [](Call& c, auto& out, auto& a, auto& b, bool transpose) {
    c.ops.matmul(out, a, b, transpose);
    if (c.index > 0) return;
    edit(out, [&](Values& v) {  // one ulp toward zero, every second element
      for (size_t i = 0; i < v.size(); i += 2)
        v[i] = truncated_to(out.dtype(), v[i] * (1 - 0x1p-16));
    });
  }};
}

}  // namespace

std::vector<Fault> sdpa_faults() {
  using Cap = AttentionSpec::Cap;
  std::vector<Fault> out = {
      params_fault("scale missing", [](SdpaParams& p, double) { p.scale = 1; }),
      params_fault("scale 1 % too large", [](SdpaParams& p, double) { p.scale *= 1.01; }),
      params_fault("scale of the head's width for the configured one",
                   [](SdpaParams& p, double head_dim) { p.scale = 1 / std::sqrt(head_dim); }),
      params_fault("scale twice", [](SdpaParams& p, double) { p.scale *= p.scale; }),
      params_fault("softcap missing", [](SdpaParams& p, double) { p.softcap.reset(); }),
      params_fault("softcap doubled",
                   [](SdpaParams& p, double) {
                     if (p.softcap) *p.softcap *= 2;
                   }),
      params_fault("softcap 1 % too large",
                   [](SdpaParams& p, double) {
                     if (p.softcap) *p.softcap *= 1.01;
                   }),
      spec_fault("softcap after the mask", {.cap = Cap::after_mask}),
      spec_fault("softcap before the scale", {.cap = Cap::before_scale}),
      spec_fault("softcap without its rescale", {.cap = Cap::no_rescale}),
      spec_fault("heads tiled instead of repeated", {.tiled_heads = true}),
      spec_fault("online softmax without rescale", {.block_without_rescale = 3}),
      spec_fault("last key not in the normaliser", {.uncounted = 1}),
      spec_fault("not normalised", {.normalise = false}),
      operands_fault("keys for values", [](Call&, Operands& o) { o.v = o.k; }),
      operands_fault("all heads use the first key head",
                     [](Call&, Operands& o) {
                       o.k = o.k.slice(1, 0, 1);
                       o.v = o.v.slice(1, 0, 1);
                     }),
      operands_fault("last key stale",
                     [](Call& c, Operands& o) {
                       o.k = changed(c.ops, o.k, [&](Values& v) { last_slot_stale(v, o.k); });
                     }),
      operands_fault("last value stale",
                     [](Call& c, Operands& o) {
                       o.v = changed(c.ops, o.v, [&](Values& v) { last_slot_stale(v, o.v); });
                     }),
      operands_fault("last column of the head dropped from the scores",
                     [](Call&, Operands& o) {
                       const int64_t width = o.q.dim(3);
                       o.q = o.q.slice(3, 0, width - 1);
                       o.k = o.k.slice(3, 0, width - 1);
                     }),
      {"sdpa",
       "heads merged without a transpose",
       {.sdpa =
            [](Call& c, auto& out, auto& q, auto& k, auto& v, auto& m, auto& p) {
              heads_not_merged(c, {out, q, k, v, m, p});
            }}},
      {"sdpa", "scale folded into the queries", scale_folded_into_queries(), true},
      {"sdpa", "probabilities not rounded", probabilities_not_rounded(), true},
      {"sdpa", "scores truncated", scores_truncated(), true},
  };
  mask_faults(out);
  return out;
}

}  // namespace plumb::harness::testing
