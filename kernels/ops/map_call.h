// One call of an elementwise op, and which formula an op with a choice of several has.
#pragma once

#include "kernels/ops/op_params.h"
#include "kernels/ops/table.h"

namespace plumb {

// One call of an elementwise op; `b` and `c` are null where its formula has fewer inputs.
struct MapCall {
  const OpRow& row;
  Formula formula;
  const Tensor& out;
  const Tensor& a;
  const Tensor* b = nullptr;
  const Tensor* c = nullptr;
  double number = 0, shift = 0;
  bool broadcasts = false;  // inputs may have strides of 0, along the last axis, too

  // That of the call, which a condition does not have.
  DType storage() const { return c ? c->dtype() : a.dtype(); }
};

// Whether devices compute in it with vectors, in float32. In what else a row has they read the same
// formulas and reductions as doubles or as whole numbers (wholes.h).
inline bool is_vectorised(DType dtype) { return kFloats.has(dtype); }

// A comparison's outputs are not numbers.
inline bool gives_bool(OpId op) {
  return row_of(op).operands.operands[0].type == OperandType::boolean;
}
inline bool takes_bools(OpId op) {
  return row_of(op).operands.operands[1].type == OperandType::same;
}
inline bool gives_ids(OpId op) { return row_of(op).operands.operands[0].type == OperandType::i64; }
inline bool gives_total(OpId op) {
  return row_of(op).operands.operands[0].type == OperandType::total;
}
inline bool has_condition(OpId op) {
  return row_of(op).operands.operands[1].type == OperandType::boolean;
}
// Whether inputs may differ in shape: those of fused ops may not, nor those of a gradient.
inline bool takes_broadcasts(OpId op) {
  const OpRow& row = row_of(op);
  return row.formula && !is_fused(op) && !row.is_backward() && row.operands.count > 2;
}
inline DType output_dtype(OpId op, DType storage) {
  return gives_bool(op) ? DType::boolean : storage;
}

inline bool has_one_formula(OpId op) {
  switch (op) {
    case OpId::activation:
    case OpId::activation_backward:
    case OpId::gated_activation:
    case OpId::gated_activation_backward:
    case OpId::scale: return false;
    default: return row_of(op).formula.has_value();
  }
}
// One of four that are in the order of Activation, from their first.
inline Formula formula_of(Activation function, Formula first = Formula::silu) {
  return static_cast<Formula>(static_cast<int>(first) + static_cast<int>(function));
}

inline Formula gated_formula_of(Activation function) {
  return formula_of(function, Formula::gated_silu);
}

// Of a formula that is an activation, gates with one, or is backward through either.
inline Activation activation_of(Formula formula) {
  const int at = static_cast<int>(formula) - static_cast<int>(Formula::silu);
  return static_cast<Activation>(at % 4);
}

}  // namespace plumb
