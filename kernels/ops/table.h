// The op table: what operands each op takes, which it writes, what it costs. What it computes, and
// where it rounds, is in ops.h.
#pragma once

#include <optional>
#include <string>

#include "kernels/ops/dtypes.h"
#include "kernels/ops/formulas.h"
#include "kernels/ops/op_id.h"
#include "kernels/ops/reductions.h"
#include "kernels/ops/signature.h"

namespace plumb {

// How much of an output's bits a correct kernel may change.
enum class OpBits {
  exact,   // none
  leaf,    // where a sum straddles a rounding boundary
  scaled,  // the same of a row that is scaled as a whole
};

// Which field of a plugin's parameters holds the op's one number.
enum class NumberField { scale, eps, cap, attention_scaling };

struct OpRow {
  OpId id;
  const char* name;
  Signature operands;
  // Storage dtypes of its calls. The oracle has f64 of every op, and so have checks: devices refuse
  // floats that they lack.
  DTypes dtypes = kFloats;
  Signature transposed = operands;  // with the op's switch on
  std::string_view sums = "";       // letters: the lengths of its sums, in order
  double flops = 0;                 // of an element of the first output
  std::string_view per = "";        // letters: as often as their product
  bool per_input = false;           // of an element of the first input, as a reduction's are
  double more = 0;                  // and these once
  double of_bias = 0;               // and these where there is a bias
  OpBits bits = OpBits::leaf;
  NumberField number = NumberField::scale;
  bool along_axis = false;  // its whole number is an axis
  bool in_place = false;    // the first input may be the first output; a formula's always
  std::optional<Formula> formula = {};  // of an elementwise op; of several the first
  std::optional<Reduction> reduction = {};

  // Whether it gives gradients: "d_x", by what the forward calls x.
  constexpr bool is_backward() const { return operands.operands[0].name.starts_with("d_"); }
};

const OpRow& row_of(OpId op);
// "R(tanh(R(x / number)) * number)": one of the op's formulas, of its inputs.
std::string text_of(OpId op, Formula formula);
// "0; s + x; a + b; R(s / count)": start, step, combination and result. What is next to the value
// follows a comma: "inf, 0; ...".
std::string text_of(Reduction reduction);

}  // namespace plumb
