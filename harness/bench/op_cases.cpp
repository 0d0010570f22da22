// Every elementwise op and reduction of the op table on [tokens, hidden], made from its row, and
// products of 8 bits.
#include "harness/bench/maker.h"
#include "kernels/core/error.h"
#include "kernels/ops/map_call.h"

namespace plumb::harness {
namespace {

using Operands = BenchOperands;
using blocks::Context;
using Call = std::function<void(Context&)>;

DType dtype_of(const Operand& operand, DType storage) {
  switch (operand.type) {
    case OperandType::boolean: return DType::boolean;
    case OperandType::i64: return DType::i64;
    default: return storage;
  }
}

BenchOperand made(const Operand& operand, bool written, const BenchMaker& m, const Shape& shape) {
  const DType dtype = dtype_of(operand, m.sizes.dtype);
  if (written) return {std::string(operand.name), dtype, shape, {}, true};
  const Fill::Kind kind = dtype == DType::boolean ? Fill::flags : Fill::normal;
  return {std::string(operand.name), dtype, shape, {kind}};
}

BenchCase formula_case(const OpRow& row, const BenchMaker& m) {
  constexpr double kNumber = 1.25, kShift = 0.5;
  BenchCase out{"ops", text("ops.", row.name), {}, {}};
  std::vector<std::string> names;
  for (int i = 0; i < row.operands.count; ++i) {
    out.operands.push_back(
        made(row.operands.operands.at(static_cast<size_t>(i)), i == 0, m, m.hidden()));
    names.push_back(out.operands.back().name);
  }
  out.bind = [op = row.id, names](const Operands& operands) -> Call {
    std::vector<Tensor> t;
    for (const std::string& name : names) t.push_back(operands.at(name));
    return [op, t](Context& ctx) {
      switch (t.size()) {
        case 2: return ctx.ops.unary(op, t[0], t[1], kNumber, kShift);
        case 3: return ctx.ops.binary(op, t[0], t[1], t[2], kNumber);
        default: return ctx.ops.ternary(op, t[0], t[1], t[2], t[3]);
      }
    };
  };
  return out;
}

BenchCase reduction_case(const OpRow& row, const BenchMaker& m, int axis, const char* what) {
  Shape reduced = m.hidden();
  reduced.set(axis, 1);
  const auto& operands = row.operands.operands;
  return {"ops",
          text("ops.", row.name, '.', what),
          {made(operands[0], true, m, reduced), made(operands[1], false, m, m.hidden())},
          [op = row.id, axis](const Operands& t) -> Call {
            return [op, axis, y = t.at("out"), x = t.at("x")](Context& ctx) {
              ctx.ops.reduce(op, y, x, {axis});
            };
          }};
}

// [tokens, hidden] by a weight [intermediate, hidden].
BenchCase product_case(const BenchMaker& m, DType dtype) {
  const auto operand = [](const char* name, DType type, int64_t rows, int64_t columns,
                          const Fill& fill) {
    return BenchOperand{name, type, {rows, columns}, fill, fill.kind == Fill::output};
  };
  const int64_t rows = m.sizes.tokens, columns = m.shape.intermediate, inner = m.shape.hidden;
  const Fill normal{Fill::normal, 0, is_whole(dtype) ? 40.0 : 1.0};
  return {"products",
          text("products.", name_of(dtype)),
          {operand("out", sums_of(dtype), rows, columns, {}),
           operand("a", dtype, rows, inner, normal), operand("b", dtype, columns, inner, normal)},
          [](const Operands& t) -> Call {
            return [out = t.at("out"), a = t.at("a"), b = t.at("b")](Context& ctx) {
              GemmParams params;
              params.transpose_b = true;
              ctx.ops.gemm(out, a, b, {}, {}, params);
            };
          }};
}

}  // namespace

std::vector<BenchCase> op_cases(const BenchMaker& m) {
  std::vector<BenchCase> out;
  for (int i = 0; i < kOpCount; ++i) {
    const OpRow& row = row_of(static_cast<OpId>(i));
    // torch's gradients are of a function's result, or run it, too: they are no rivals.
    if (has_one_formula(row.id) && !is_fused(row.id) && !row.is_backward()) {
      out.push_back(formula_case(row, m));
    }
    if (row.reduction) {
      out.push_back(reduction_case(row, m, 2, "rows"));
      out.push_back(reduction_case(row, m, 1, "columns"));
    }
  }
  for (const DType dtype : {DType::f8_e4m3, DType::i8}) out.push_back(product_case(m, dtype));
  return out;
}

}  // namespace plumb::harness
