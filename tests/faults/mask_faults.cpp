// Faults of the mask, as a tensor and inside attention.
#include "tests/faults/mask_faults.h"

#include <limits>

#include "tests/faults/wrong_ops.h"

namespace plumb::harness::testing {
namespace {

bool seen(const AttentionMask& m, int64_t b, int64_t query, int64_t key, int64_t s) {
  return (!m.causal || key <= query) && (!m.window || query - key < *m.window) &&
         (!m.key_valid.defined() || m.key_valid.data<bool>()[b * m.key_valid.dim(1) + s]);
}

bool strictly_causal(const AttentionMask& m, int64_t b, int64_t t, int64_t s) {
  const int64_t query = m.query_offset + t, key = m.key_offset + s;
  return seen(m, b, query, key, s) && key < query;
}

// Padding taken for the query's slot instead of the key's.
bool padded_queries(const AttentionMask& m, int64_t b, int64_t t, int64_t s) {
  const int64_t query = m.query_offset + t, key = m.key_offset + s;
  AttentionMask unpadded = m;
  unpadded.key_valid = {};
  const int64_t slot = query - m.key_offset;
  const bool valid = !m.key_valid.defined() || slot >= m.key_valid.dim(1) ||
                     m.key_valid.data<bool>()[b * m.key_valid.dim(1) + slot];
  return seen(unpadded, b, query, key, s) && valid;
}

bool first_row_padding(const AttentionMask& m, int64_t, int64_t t, int64_t s) {
  return seen(m, m.key_valid.defined() ? m.key_valid.dim(0) - 1 : 0, m.query_offset + t,
              m.key_offset + s, s);
}

}  // namespace

std::vector<MaskFault> mask_edits() {
  return {
      {"causality ignored", [](AttentionMask& m) { m.causal = false; }},
      {"queries see one key too many", [](AttentionMask& m) { m.query_offset += m.causal; }},
      {"queries see one key too few", [](AttentionMask& m) { m.query_offset -= m.causal; }},
      {"aligned at the top left", [](AttentionMask& m) { m.query_offset = m.key_offset = 0; }},
      {"evicted slots not counted", [](AttentionMask& m) { m.key_offset = 0; }},
      {"window ignored", [](AttentionMask& m) { m.window.reset(); }},
      {"window + 1",
       [](AttentionMask& m) {
         if (m.window) ++*m.window;
       }},
      {"window - 1",
       [](AttentionMask& m) {
         if (m.window) --*m.window;
       }},
      {"padding ignored", [](AttentionMask& m) { m.key_valid = {}; }},
  };
}

std::vector<MaskRule> mask_rules() {
  return {
      {"a query does not see itself", strictly_causal},
      {"padding of queries instead of keys", padded_queries},
      {"one row's padding for all", first_row_padding},
  };
}

namespace {

// What is allowed, [B, H, T, S] of out, as values of its dtype.
void put_mask(const Tensor& out, const Tensor& allowed, double forbidden) {
  const Values bits = values_of(allowed.expand(0, out.dim(0)));
  Values v(bits.size());
  const bool boolean = out.dtype() == DType::boolean;
  for (size_t i = 0; i < v.size(); ++i) v[i] = boolean ? bits[i] : bits[i] != 0 ? 0 : forbidden;
  put(out, v);
}

double lowest(const Tensor& out) { return is_floating(out.dtype()) ? -info(out.dtype()).max : 0; }

Fault values_fault(const char* name, const std::function<void(Values&, const Tensor& out)>& wrong) {
  return {"causal_mask", name, {.causal_mask = [wrong](Call& c, auto& out, auto& mask) {
            c.ops.causal_mask(out, mask);
            edit(out, [&](Values& v) { wrong(v, out); });
          }}};
}

Fault forbidden_fault(const char* name, double forbidden) {
  return values_fault(name, [forbidden](Values& v, const Tensor& out) {
    for (double& x : v) {
      if (is_floating(out.dtype()) && x != 0) x = forbidden;
    }
  });
}

void inverted(Values& v, const Tensor& out) {
  const double forbidden = is_floating(out.dtype()) ? lowest(out) : 1;
  for (double& x : v) x = x == 0 ? forbidden : 0;
}

void transposed(Values& v, const Tensor& out) {
  const auto rows = static_cast<size_t>(out.dim(2)), columns = static_cast<size_t>(out.dim(3));
  if (rows != columns) return;
  const Values in = v;
  for (size_t i = 0; i < v.size(); ++i) {
    const size_t square = i / (rows * rows) * rows * rows, row = i / rows % rows, column = i % rows;
    v[i] = in[square + column * rows + row];
  }
}

}  // namespace

std::vector<Fault> causal_mask_faults() {
  std::vector<Fault> out;
  for (const auto& [name, change] : mask_edits()) {
    out.push_back(
        {"causal_mask", name, {.causal_mask = [change](Call& c, auto& t, AttentionMask m) {
           change(m);
           c.ops.causal_mask(t, m);
         }}});
  }
  for (const auto& [name, rule] : mask_rules()) {
    out.push_back({"causal_mask", name, {.causal_mask = [rule](Call& c, auto& t, AttentionMask m) {
                     if (m.explicit_mask.defined()) return c.ops.causal_mask(t, m);
                     put_mask(t, mask_by(c.ops, m, t.dim(2), t.dim(3), rule), lowest(t));
                   }}});
  }
  out.push_back(forbidden_fault("minus infinity", -std::numeric_limits<double>::infinity()));
  out.push_back(forbidden_fault("-10000", -1e4));
  out.push_back(values_fault("inverted", inverted));
  out.push_back(values_fault("transposed", transposed));
  return out;
}

}  // namespace plumb::harness::testing
