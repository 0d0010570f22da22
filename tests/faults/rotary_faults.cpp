#include "tests/faults/fault.h"
#include "tests/faults/wrong_ops.h"

namespace plumb::harness::testing {
namespace {

// Call 0 rotates the queries, call 1 the keys.
Fault rotary_fault(const char* name,
                   const std::function<void(Call&, const Tensor& out, const Tensor& x, Tensor cos,
                                            Tensor sin, RotaryStyle)>& run,
                   bool narrow_only = false) {
  return {"rotary",
          name,
          {.rotary = [run](Call& c, auto& out, auto& x, auto& cos, auto& sin,
                           RotaryStyle style) { run(c, out, x, cos, sin, style); }},
          narrow_only};
}

Fault spec_fault(const char* name, const RotarySpec& spec, bool narrow_only = false) {
  return rotary_fault(
      name,
      [spec](Call&, auto& out, auto& x, Tensor cos, Tensor sin, RotaryStyle style) {
        wrong_rotary(out, x, cos, sin, style, spec);
      },
      narrow_only);
}

// The table [B, T, r] with row t taken from row pick(b, t).
Tensor rows_moved(Call& c, const Tensor& table,
                  const std::function<size_t(size_t b, size_t t, size_t tokens)>& pick) {
  const auto tokens = static_cast<size_t>(table.dim(1)), r = static_cast<size_t>(table.dim(2));
  return changed(c.ops, table, [&](Values& v) {
    const Values in = v;
    for (size_t i = 0; i < v.size(); ++i) {
      const size_t row = i / r;
      v[i] = in[(pick(row / tokens, row % tokens, tokens) * r + i % r) % in.size()];
    }
  });
}

Fault table_row_fault(const char* name,
                      const std::function<size_t(size_t b, size_t t, size_t tokens)>& pick) {
  return rotary_fault(
      name, [pick](Call& c, auto& out, auto& x, Tensor cos, Tensor sin, RotaryStyle style) {
        c.ops.rotary(out, x, rows_moved(c, cos, pick), rows_moved(c, sin, pick), style);
      });
}

Fault only_one_fault(const char* name, int rotated) {
  return rotary_fault(
      name, [rotated](Call& c, auto& out, auto& x, Tensor cos, Tensor sin, RotaryStyle style) {
        if (c.index == rotated) c.ops.rotary(out, x, cos, sin, style);
        else c.ops.copy(out, x);
      });
}

// The right result with some elements put back; keep(column, head, heads) says which.
Fault kept_back_fault(
    const char* name,
    const std::function<bool(int64_t d, int64_t r, int64_t h, int64_t heads)>& pick,
    bool zero = false) {
  return rotary_fault(name,
                      [=](Call& c, auto& out, auto& x, Tensor cos, Tensor sin, RotaryStyle style) {
                        const Values in = values_of(x);
                        const int64_t width = x.dim(3), rows = x.dim(2), heads = x.dim(1);
                        c.ops.rotary(out, x, cos, sin, style);
                        edit(out, [&](Values& v) {
                          for (size_t i = 0; i < v.size(); ++i) {
                            const auto at = static_cast<int64_t>(i);
                            if (pick(at % width, cos.dim(2), at / (width * rows) % heads, heads)) {
                              v[i] = zero ? 0 : in[i];
                            }
                          }
                        });
                      });
}

}  // namespace

std::vector<Fault> rotary_faults() {
  return {
      spec_fault("sine's sign", {.sine = -1}),
      spec_fault("sine term missing", {.sine = 0}),
      spec_fault("first half only", {.first_half_only = true}),
      spec_fault("table row by head instead of by token", {.table_by_head = true}),
      spec_fault("partial: last columns instead of the first", {.rotate_last_columns = true}),
      spec_fault("products not rounded", {.round_products = false}, true),
      spec_fault("truncating store", {.truncate = true}, true),
      rotary_fault("halves for pairs and pairs for halves",
                   [](Call& c, auto& out, auto& x, Tensor cos, Tensor sin, RotaryStyle style) {
                     c.ops.rotary(
                         out, x, cos, sin,
                         style == RotaryStyle::half ? RotaryStyle::interleaved : RotaryStyle::half);
                   }),
      rotary_fault("cosine and sine exchanged",
                   [](Call& c, auto& out, auto& x, Tensor cos, Tensor sin, RotaryStyle style) {
                     c.ops.rotary(out, x, sin, cos, style);
                   }),
      rotary_fault("rotated twice",
                   [](Call& c, auto& out, auto& x, Tensor cos, Tensor sin, RotaryStyle style) {
                     const Tensor once = fresh(c.ops, x.dtype(), x.shape());
                     c.ops.rotary(once, x, cos, sin, style);
                     c.ops.rotary(out, once, cos, sin, style);
                   }),
      table_row_fault("position + 1",
                      [](size_t b, size_t t, size_t n) { return b * n + (t + 1) % n; }),
      table_row_fault("all batch rows use the last one's table",
                      [](size_t, size_t t, size_t n) { return n + t; }),
      only_one_fault("queries not rotated", 1),
      only_one_fault("keys not rotated", 0),
      kept_back_fault("last head not rotated",
                      [](int64_t, int64_t, int64_t h, int64_t heads) { return h == heads - 1; }),
      kept_back_fault(
          "partial: other columns zero",
          [](int64_t d, int64_t r, int64_t, int64_t) { return d >= r; }, true),
  };
}

}  // namespace plumb::harness::testing
