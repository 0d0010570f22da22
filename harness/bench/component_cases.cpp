// Single operations that models use outside of the blocks of a decoder layer.
#include "harness/bench/maker.h"

namespace plumb::harness {
namespace {

using Operands = BenchOperands;
using blocks::Context;
using Call = std::function<void(Context&)>;

}  // namespace

std::vector<BenchCase> component_cases(const BenchMaker& m) {
  const int64_t tokens = m.sizes.tokens;
  const BenchOperand out = m.out("out", m.hidden()), x = m.in("x", m.hidden());
  const BenchOperand divisor{"divisor", m.sizes.dtype, m.hidden(), {Fill::normal, 3, 0.2}};
  const auto flags = [](const char* name, const Shape& shape) {
    return BenchOperand{name, DType::boolean, shape, {Fill::flags}};
  };
  const Shape keys = m.heads(m.shape.kv_heads, tokens), mask{1, 1, tokens, m.sizes.context};
  const Shape columns{1, m.shape.kv_heads, m.shape.head_dim, tokens};
  const BenchOperand ids{"out", DType::i64, {1, tokens}, {}, true};
  return {
      {"div",
       "div",
       {out, x, divisor},
       [](const Operands& t) -> Call {
         return [y = t.at("out"), x = t.at("x"), d = t.at("divisor")](Context& ctx) {
           ctx.ops.div(y, x, d);
         };
       }},
      {"add_scalar",
       "add_scalar",
       {out, x},
       [](const Operands& t) -> Call {
         return [y = t.at("out"), x = t.at("x")](Context& ctx) { ctx.ops.add_scalar(y, x, 1); };
       }},
      {"permute",
       "permute",
       {m.out("out", columns), m.in("x", keys)},
       [](const Operands& t) -> Call {
         return [y = t.at("out"), x = t.at("x")](Context& ctx) { ctx.ops.transpose(y, x); };
       }},
      {"mask_fill",
       "mask_fill",
       {m.out("out", mask), m.in("x", mask), flags("mask", mask)},
       [lowest = -info(m.sizes.dtype).max](const Operands& t) -> Call {
         return [lowest, y = t.at("out"), x = t.at("x"), mask = t.at("mask")](Context& ctx) {
           ctx.ops.mask_fill(y, x, mask, lowest);
         };
       }},
      {"position_ids",
       "position_ids",
       {ids, flags("valid", {1, tokens})},
       [](const Operands& t) -> Call {
         return [y = t.at("out"), valid = t.at("valid")](Context& ctx) {
           ctx.ops.position_ids(y, valid, 0);
         };
       }},
  };
}

}  // namespace plumb::harness
