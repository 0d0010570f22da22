// Whether a call's operands fit their op's row: compiled from the row, a few compares per operand.
// What does not fit is named by check.cpp.
#pragma once

#include <tuple>
#include <utility>

#include "kernels/ops/ops.h"
#include "kernels/ops/table_rows.h"

namespace plumb {
namespace fits_detail {

struct Found {
  std::array<int64_t, kMostLetters> extents{};
  std::array<bool, kMostLetters> known{};
  const Tensor* leading = nullptr;
  int leading_rank = 0;
  DType storage = DType::f32;
  bool has_storage = false;
  DTypes dtypes = kFloats;  // of the op
};

inline bool is_placed(const Device& device, const Tensor& t) {
  return t.storage().owner == &device && t.rank() >= 1 && (t.dim(-1) <= 1 || t.stride(-1) == 1);
}

template <OperandType type>
bool has_dtype(const Tensor& t, const Found& found, bool narrow) {
  const DType dtype = t.dtype();
  switch (type) {
    case OperandType::any: return true;
    case OperandType::i64: return dtype == DType::i64;
    case OperandType::ids: return is_id(dtype);
    case OperandType::boolean: return dtype == DType::boolean;
    case OperandType::floating: return is_floating(dtype);
    case OperandType::codes: return is_code(dtype);
    case OperandType::scales: return is_floating(dtype) || dtype == DType::u8;
    case OperandType::wide: return dtype == (found.storage == DType::f64 ? DType::f64 : DType::f32);
    case OperandType::narrow:
      return dtype == found.storage ||
             (narrow && found.storage == DType::f64 && is_floating(dtype));
    case OperandType::storage:
    case OperandType::same: return dtype == found.storage;
    case OperandType::total: return dtype == total_of(found.storage);
    case OperandType::sums:
      return dtype == sums_of(found.storage) ||
             (narrow && dtype == DType::f64 && is_float8(found.storage));
  }
  return false;
}

template <OperandType type>
bool takes_storage(const Tensor& t, Found& found) {
  if constexpr (type == OperandType::storage || type == OperandType::same) {
    if (!found.has_storage && t.defined()) {
      if (!is_floating(t.dtype()) && !found.dtypes.has(t.dtype())) return false;
      found.storage = t.dtype();
      found.has_storage = true;
    }
  }
  return true;
}

// Place in the signature, place among the operand's axes.
template <const Signature& s, size_t operand, size_t place>
bool has_extent(int64_t extent, Found& found) {
  constexpr Extent axis = s.operands[operand].axes[place];
  if constexpr (axis.letter < 0) {
    return extent == axis.number;
  } else {
    constexpr auto letter = static_cast<size_t>(axis.letter);
    if (axis.broadcast && extent == 1) return true;
    if (found.known[letter]) return extent == found.extents[letter] * axis.number;
    found.known[letter] = true;
    found.extents[letter] = extent / axis.number;
    return axis.number == 1 || extent % axis.number == 0;
  }
}

inline bool has_leading(const Tensor& t, int rank, Found& found) {
  if (!found.leading) {
    found.leading = &t;
    found.leading_rank = rank;
    return rank >= 0;
  }
  if (rank != found.leading_rank) return false;
  for (int i = 0; i < rank; ++i) {
    if (t.dim(i) != found.leading->dim(i)) return false;
  }
  return true;
}

template <const Signature& s, size_t operand>
bool has_shape(const Tensor& t, Found& found) {
  if constexpr (s.operands[operand].any_shape) return true;
  constexpr int rank = s.operands[operand].rank;
  const int leading = t.rank() - rank;
  if constexpr (s.operands[operand].leading) {
    if (!has_leading(t, leading, found)) return false;
  } else {
    if (leading != 0) return false;
  }
  return [&]<size_t... axis>(std::index_sequence<axis...>) {
    return (has_extent<s, operand, axis>(t.dim(leading + static_cast<int>(axis)), found) && ...);
  }
  (std::make_index_sequence<static_cast<size_t>(rank)>());
}

template <const Signature& s, size_t operand>
bool fits(const Device& device, const Tensor& t, Found& found, bool narrow) {
  if (!t.defined()) return s.operands[operand].optional;
  return is_placed(device, t) && has_dtype<s.operands[operand].type>(t, found, narrow) &&
         has_shape<s, operand>(t, found);
}

// The place among the operands of the one that is looked at i-th: inputs first.
template <const Signature& s>
constexpr size_t looked_at(size_t i, size_t given) {
  const size_t inputs = given - static_cast<size_t>(s.outputs);
  return i < inputs ? i + static_cast<size_t>(s.outputs) : i - inputs;
}

template <const Signature& s, class Tensors, size_t... i>
bool all_fit(const Device& device, const Tensors& tensors, Found& found, bool narrow,
             std::index_sequence<i...>) {
  constexpr size_t n = sizeof...(i);
  const bool fit =
      (takes_storage<s.operands[looked_at<s>(i, n)].type>(std::get<looked_at<s>(i, n)>(tensors),
                                                          found) &&
       ...) &&
      (fits<s, looked_at<s>(i, n)>(device, std::get<looked_at<s>(i, n)>(tensors), found, narrow) &&
       ...);
  if (!fit) return false;
  if constexpr (s.divisor >= 0) {
    const int64_t divisor = found.extents[s.divisor];
    return divisor > 0 && found.extents[s.multiple] % divisor == 0;
  }
  return true;
}

template <OpId op, bool transposed>
inline constexpr Signature kSignature = transposed ? kTable[static_cast<size_t>(op)].transposed
                                                   : kTable[static_cast<size_t>(op)].operands;

}  // namespace fits_detail

// The operands in the order of the row, of which the last may be missing where they are optional.
// All are on the device, their last axis contiguous. `s`: the signature of the op's row.
template <const Signature& s, class... Tensors>
bool fits_as(OpId op, fits_detail::Found& found, const Device& device, bool narrow_weights,
             const Tensors&... tensors) {
  found.dtypes = kTable[static_cast<size_t>(op)].dtypes;
  return fits_detail::all_fit<s>(device, std::tie(tensors...), found, narrow_weights,
                                 std::index_sequence_for<Tensors...>());
}
inline CheckedCall checked_call(OpId op, const fits_detail::Found& found) {
  return {kTable[static_cast<size_t>(op)], is_floating(found.storage) ? found.storage : DType::f32,
          found.extents};
}

template <const Signature& s, class... Tensors>
CheckedCall check_as(OpId op, const Device& device, bool narrow_weights,
                     const Tensors&... tensors) {
  fits_detail::Found found;
  if (!fits_as<s>(op, found, device, narrow_weights, tensors...)) {
    refuse(op, s, device, {&tensors...}, narrow_weights);
  }
  return checked_call(op, found);
}

template <OpId op, bool transposed = false, class... Tensors>
CheckedCall check(const Device& device, bool narrow_weights, const Tensors&... tensors) {
  return check_as<fits_detail::kSignature<op, transposed>>(op, device, narrow_weights, tensors...);
}

template <OpId op, bool transposed, class... Tensors>
CheckedCall Ops::checked(const Tensors&... tensors) const {
  return check<op, transposed>(device_, takes_narrow_weights(), tensors...);
}

}  // namespace plumb
