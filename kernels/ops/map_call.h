// One call of an elementwise op, and which formula an op with a choice of several has.
#pragma once

#include "kernels/ops/op_params.h"
#include "kernels/ops/table.h"

namespace plumb {

// One call of an elementwise op; `b` is null where its formula has one input.
struct MapCall {
  const OpRow& row;
  Formula formula;
  const Tensor& out;
  const Tensor& a;
  const Tensor* b = nullptr;
  double number = 0;
};

// A comparison's outputs are not numbers.
inline bool gives_bool(OpId op) {
  return row_of(op).operands.operands[0].type == OperandType::boolean;
}
inline DType output_dtype(OpId op, DType storage) {
  return gives_bool(op) ? DType::boolean : storage;
}

inline bool has_one_formula(OpId op) {
  return row_of(op).formula && op != OpId::activation && op != OpId::gated_activation &&
         op != OpId::scale;
}
inline Formula formula_of(Activation function) {
  return static_cast<Formula>(static_cast<int>(Formula::silu) + static_cast<int>(function));
}

inline Formula gated_formula_of(Activation function) {
  return static_cast<Formula>(static_cast<int>(Formula::gated_silu) + static_cast<int>(function));
}

// Of a formula that is an activation, or gates with one.
inline Activation activation_of(Formula formula) {
  const int at = static_cast<int>(formula) - static_cast<int>(Formula::silu);
  return static_cast<Activation>(at % 4);
}

}  // namespace plumb
