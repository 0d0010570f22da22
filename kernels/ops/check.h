// The operands of a call held to their op's row; a UsageError names op, operand and what was
// expected: "[linear] weight has shape [64, 32], expected [N,K] with K = 48".
#pragma once

#include <array>
#include <initializer_list>

#include "kernels/core/device.h"
#include "kernels/ops/table.h"

namespace plumb {

struct CheckedCall {
  const OpRow& row;
  DType storage = DType::f32;  // float32 where no operand is a float
  std::array<int64_t, kMostLetters> extents{};

  int64_t extent(char letter) const {
    return extents[static_cast<size_t>(row.operands.place_of(letter))];
  }
};

// "a float dtype, i32 or i64": what a storage dtype of the op may be.
std::string words_of(const DTypes& dtypes);

// Throws the UsageError of operands that do not fit (kernels/ops/fits.h). `tensors` in the order of
// the row, of which the last may be missing where they are optional.
[[noreturn]] void refuse(OpId op, const Signature& signature, const Device& device,
                         std::initializer_list<const Tensor*> tensors, bool narrow_weights);

}  // namespace plumb
