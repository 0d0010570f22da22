// Sets of dtypes: what the storage dtype of an op's call may be.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/core/dtype.h"

namespace plumb {

class DTypes {
 public:
  constexpr DTypes(std::initializer_list<DType> dtypes) {
    for (const DType dtype : dtypes) bits_ |= bit(dtype);
  }
  constexpr bool has(DType dtype) const { return (bits_ & bit(dtype)) != 0; }
  constexpr DTypes operator|(const DTypes& others) const {
    DTypes out{};
    out.bits_ = static_cast<uint16_t>(bits_ | others.bits_);
    return out;
  }

 private:
  static constexpr uint16_t bit(DType dtype) {
    return static_cast<uint16_t>(1u << static_cast<unsigned>(dtype));
  }
  uint16_t bits_ = 0;
};

inline constexpr DTypes kFloats{DType::f32, DType::f16, DType::bf16};
inline constexpr DTypes kReals = kFloats | DTypes{DType::f64};
inline constexpr DTypes kWholes{DType::i64, DType::i32, DType::u32, DType::u8};
inline constexpr DTypes kNumbers = kReals | kWholes;
inline constexpr DTypes kNumbersAndBool = kNumbers | DTypes{DType::boolean};
inline constexpr DTypes kFactors =  // of products of matrices
    kReals | DTypes{DType::f8_e4m3, DType::f8_e5m2, DType::i8, DType::u8};
inline constexpr DTypes kAllDTypes =
    kNumbersAndBool | DTypes{DType::f8_e4m3, DType::f8_e5m2, DType::i8};

// A whole number or bool.
constexpr bool is_whole(DType dtype) { return dtype >= DType::i8; }
constexpr bool is_float8(DType dtype) { return dtype == DType::f8_e4m3 || dtype == DType::f8_e5m2; }

// Of what elements of a dtype add up to along an axis, as torch has it.
constexpr DType total_of(DType dtype) { return is_whole(dtype) ? DType::i64 : dtype; }
// Of what their products add up to in a product of matrices.
constexpr DType sums_of(DType dtype) {
  return is_whole(dtype) ? DType::i32 : is_float8(dtype) ? DType::f32 : dtype;
}

}  // namespace plumb
