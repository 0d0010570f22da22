// Faults of the matrix product and of the logits made with it.
#include <algorithm>
#include <cmath>

#include "tests/faults/fault.h"
#include "tests/faults/wrong_ops.h"

namespace plumb::harness::testing {
namespace {

Fault spec_fault(const char* block, const char* name, const LinearSpec& spec,
                 bool narrow_only = false) {
  return {block,
          name,
          {.linear = [spec](Call&, auto& out, auto& x, auto& w,
                            auto& b) { wrong_linear(out, x, w, b, spec); }},
          narrow_only};
}

// The right result, changed: rows of `columns` elements.
Fault output_fault(const char* block, const char* name,
                   const std::function<void(Values&, size_t columns)>& wrong) {
  return {block, name, {.linear = [wrong](Call& c, auto& out, auto& x, auto& w, auto& b) {
            c.ops.linear(out, x, w, b);
            edit(out, [&](Values& v) { wrong(v, static_cast<size_t>(w.dim(0))); });
          }}};
}

// The right product of another weight.
Fault weight_fault(const char* block, const char* name,
                   const std::function<void(Values&, size_t depth)>& wrong) {
  return {block, name, {.linear = [wrong](Call& c, auto& out, auto& x, auto& w, auto& b) {
            const auto depth = static_cast<size_t>(w.dim(1));
            c.ops.linear(out, x, changed(c.ops, w, [&](Values& v) { wrong(v, depth); }), b);
          }}};
}

void rows_moved_by_one(Values& v, size_t depth) {
  std::rotate(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(depth), v.end());
}

void first_rows_exchanged(Values& v, size_t depth) {
  const auto second = v.begin() + static_cast<std::ptrdiff_t>(depth);
  std::swap_ranges(v.begin(), second, second);
}

void last_column_zero(Values& v, size_t columns) {
  for (size_t i = columns - 1; i < v.size(); i += columns) v[i] = 0;
}

void batch_shares_first(Values& v, size_t) {
  for (size_t i = v.size() / 2; i < v.size(); ++i) v[i] = v[i - v.size() / 2];
}

void scaled(Values& v, size_t) {
  for (double& x : v) x *= 1 + 0x1p-9;
}

}  // namespace

std::vector<Fault> linear_faults() {
  const char* block = "linear";
  return {
      spec_fault(block, "last four terms missing in the last columns",
                 {.dropped = 4, .dropped_from = 12}),
      spec_fault(block, "bias dropped", {.bias = 0}),
      spec_fault(block, "bias added twice", {.bias = 2}),
      spec_fault(block, "weight transposed", {.transposed = true}),
      spec_fault(block, "operands in bf16", {.multiply = DType::bf16}),
      weight_fault(block, "rows of the weight off by one", rows_moved_by_one),
      weight_fault(block, "first two rows of the weight exchanged", first_rows_exchanged),
      output_fault(block, "0.2 % too large", scaled),
      spec_fault(block, "sums in the storage dtype", {.storage_sums = true}, true),
      spec_fault(block, "rounded before the bias", {.round_before_bias = true}, true),
  };
}

namespace {

Fault head_softcap(const char* name, const std::function<double(double x, double cap)>& f) {
  return {"lm_head", name, {.softcap = [f](Call& c, auto& out, auto& x, double cap) {
            put(out, values_of(mapped(c.ops, x, [&](double v) { return f(v, cap); })));
          }}};
}

// The head projects hidden[:, T - n .. T, :]; these tokens are moved to others of the same memory.
Fault rows_fault(const char* name,
                 const std::function<int64_t(int64_t first, int64_t i, int64_t n)>& pick) {
  return {"lm_head", name, {.linear = [pick](Call& c, auto& out, auto& x, auto& w, auto& b) {
            const int64_t kept = x.dim(1), total = x.stride(0) / x.stride(1), first = total - kept;
            const Tensor moved = copied(c.ops, x);
            const int64_t row = x.dim(2) * size_of(x.dtype());
            for (int64_t batch = 0; batch < x.dim(0); ++batch) {
              const char* hidden = x.template data<char>() + (batch * total - first) * row;
              for (int64_t i = 0; i < kept; ++i) {
                std::copy_n(hidden + pick(first, i, kept) * row, row,
                            moved.data<char>() + (batch * kept + i) * row);
              }
            }
            c.ops.linear(out, moved, w, b);
          }}};
}

Hooks softcap_before_product() {
  Hooks hooks;
  hooks.linear = [](Call& c, auto& out, auto& x, auto& w, auto& b) {
    c.kept["hidden"] = copied(c.ops, x);
    c.kept["weight"] = w;
    c.ops.linear(out, x, w, b);
  };
  hooks.softcap = [](Call& c, auto& out, auto&, double cap) {
    const Tensor& hidden = c.kept.at("hidden");
    c.ops.linear(out, mapped(c.ops, hidden, [&](double v) { return cap * std::tanh(v / cap); }),
                 c.kept.at("weight"));
  };
  return hooks;
}

}  // namespace

std::vector<Fault> lm_head_faults() {
  const char* block = "lm_head";
  const auto cap_of = [](double x, double cap) { return cap * std::tanh(x / cap); };
  return {
      head_softcap("softcap missing", [](double x, double) { return x; }),
      head_softcap("softcap twice",
                   [=](double x, double cap) { return cap_of(cap_of(x, cap), cap); }),
      head_softcap("softcap 1 % too large",
                   [=](double x, double cap) { return cap_of(x, 1.01 * cap); }),
      head_softcap("softcap clamps", [](double x, double cap) { return std::clamp(x, -cap, cap); }),
      {block, "softcap before the product", softcap_before_product()},
      rows_fault("first tokens instead of the last", [](int64_t, int64_t i, int64_t) { return i; }),
      rows_fault(
          "tokens one too early",
          [](int64_t first, int64_t i, int64_t) { return std::max<int64_t>(first + i - 1, 0); }),
      rows_fault("last token for all",
                 [](int64_t first, int64_t, int64_t n) { return first + n - 1; }),
      spec_fault(block, "last term of each sum dropped", {.dropped = 1}),
      spec_fault(block, "bias dropped", {.bias = 0}),
      weight_fault(block, "vocabulary off by one", rows_moved_by_one),
      output_fault(block, "last word missing", last_column_zero),
      output_fault(block, "second batch row from the first", batch_shares_first),
      spec_fault(block, "operands in bf16", {.multiply = DType::bf16}),
      spec_fault(block, "truncating store", {.truncate = true}, true),
      spec_fault(block, "sums in the storage dtype", {.storage_sums = true}, true),
  };
}

}  // namespace plumb::harness::testing
