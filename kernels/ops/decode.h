// Elements of quantised weights out of the memory that they are packed in: read by every device.
#pragma once

#include <cstdint>

#include "kernels/ops/quantised_call.h"

namespace plumb {

// A weight as kernels take it: addresses, and elements from one row of each tensor to the next.
struct PackedWeight {
  LayoutRow layout;
  const void *codes, *scales, *zeros, *global_scale, *group_index;
  DType codes_dtype, scales_dtype, zeros_dtype, global_dtype, index_dtype;
  int64_t codes_row, scales_row, zeros_row;
  bool in_one_row;  // all codes of a flat layout, codes_row elements apart
  int64_t rows, columns, group_rows, group_columns, groups;
};

inline PackedWeight packed(const QuantisedWeight& w) {
  const auto at = [](const Tensor& t) { return t.defined() ? t.raw() : nullptr; };
  const auto dtype = [](const Tensor& t) { return t.defined() ? t.dtype() : DType::u8; };
  const auto row = [](const Tensor& t) { return t.defined() && t.rank() > 1 ? t.stride(0) : 1; };
  const bool in_one_row = w.layout.flat > 0 && (w.codes.rank() == 1 || w.codes.dim(1) == 1);
  return {w.layout,           at(w.codes),           at(w.scales),         at(w.zeros),
          at(w.global_scale), at(w.group_index),     dtype(w.codes),       dtype(w.scales),
          dtype(w.zeros),     dtype(w.global_scale), dtype(w.group_index), row(w.codes),
          row(w.scales),      row(w.zeros),          in_one_row,           w.rows,
          w.columns,          w.group_rows,          w.group_columns,      w.groups()};
}

// Templates, so that a compiler for a device makes them where they are called.
namespace decode {

template <class T>
constexpr T element(const void* p, int64_t at) {
  return static_cast<const T*>(p)[at];
}

template <class Real>
constexpr Real half(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16, magnitude = bits & 0x7fffu;
  uint32_t out = (magnitude << 13) + (112u << 23);
  if (magnitude >= 0x7c00u) out = 0x7f800000u | (magnitude & 0x3ffu) << 13;
  // 2^-24 of each unit.
  if (magnitude < 0x400u) {
    out = __builtin_bit_cast(uint32_t, static_cast<float>(magnitude) * 0x1p-24f);
  }
  return static_cast<Real>(__builtin_bit_cast(float, sign | out));
}

template <class Real>
constexpr Real e4m3(uint8_t code) {
  const uint32_t sign = (code & 0x80u) << 24, magnitude = code & 0x7fu;
  if (magnitude == 0x7f) return static_cast<Real>(__builtin_bit_cast(float, sign | 0x7fc00000u));
  // 2^120 moves the exponent from this format's bias to f32's, subnormals included.
  const float scaled = __builtin_bit_cast(float, magnitude << 20) * 0x1p120f;
  return static_cast<Real>(__builtin_bit_cast(float, sign | __builtin_bit_cast(uint32_t, scaled)));
}

// 2^(code - 127); 255 is NaN (OCP Microscaling Formats 1.0, 5.4.1).
template <class Real>
constexpr Real e8m0(uint8_t code) {
  const uint32_t bits = code == 255 ? 0x7fc00000u : code == 0 ? 0x00400000u : uint32_t{code} << 23;
  return static_cast<Real>(__builtin_bit_cast(float, bits));
}

// Of a grid of 16: OCP Microscaling Formats 1.0, 5.3.3; Dettmers and others, 2023, appendix E.
template <class Real>
constexpr Real grid_value(CodeGrid grid, int code) {
  constexpr float kE2m1[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  constexpr float kNf4[] = {-1.0f,
                            -0.6961928009986877f,
                            -0.5250730514526367f,
                            -0.39491748809814453f,
                            -0.28444138169288635f,
                            -0.18477343022823334f,
                            -0.09105003625154495f,
                            0.0f,
                            0.07958029955625534f,
                            0.16093020141124725f,
                            0.24611230194568634f,
                            0.33791524171829224f,
                            0.44070982933044434f,
                            0.5626170039176941f,
                            0.7229568362236023f,
                            1.0f};
  if (grid == CodeGrid::nf4) return static_cast<Real>(kNf4[code]);
  const float magnitude = kE2m1[code & 7];
  return static_cast<Real>(code & 8 ? -magnitude : magnitude);
}

template <class Real>
constexpr Real number_at(DType dtype, const void* p, int64_t at) {
  switch (dtype) {
    case DType::f64: return static_cast<Real>(element<double>(p, at));
    case DType::f32: return static_cast<Real>(element<float>(p, at));
    case DType::f16: return half<Real>(element<uint16_t>(p, at));
    case DType::bf16:
      return static_cast<Real>(__builtin_bit_cast(float, uint32_t{element<uint16_t>(p, at)} << 16));
    case DType::f8_e4m3: return e4m3<Real>(element<uint8_t>(p, at));
    case DType::f8_e5m2:
      return half<Real>(static_cast<uint16_t>(element<uint8_t>(p, at) << 8));  // f16's upper half
    case DType::i8: return static_cast<Real>(element<int8_t>(p, at));
    case DType::i32: return static_cast<Real>(element<int32_t>(p, at));
    default: return static_cast<Real>(element<uint8_t>(p, at));
  }
}

// Of a tensor whose words have codes of 4 bits along an axis.
template <class Word>
constexpr int packed_code(const void* p, int64_t row, uint32_t places, int axis, int64_t r,
                          int64_t c) {
  constexpr int kCodes = 2 * sizeof(Word);
  const int64_t along = axis == 0 ? r : c;
  const int64_t at = axis == 0 ? r / kCodes * row + c : r * row + c / kCodes;
  const uint32_t place = places >> 4 * (along % kCodes) & 15;
  return static_cast<int>(static_cast<uint32_t>(element<Word>(p, at)) >> 4 * place & 15);
}

// What a code of weight [n, k] means, before zero and scale.
template <class Real>
constexpr Real code_at(const PackedWeight& w, int64_t n, int64_t k) {
  const int64_t r = w.layout.by_input ? k : n, c = w.layout.by_input ? n : k;
  const auto packed = [&]<class Word>() {
    return packed_code<Word>(w.codes, w.codes_row, w.layout.places, w.layout.packed_axis, r, c);
  };
  int code = 0;
  if (w.layout.codes == CodeType::words) {
    code = packed.template operator()<uint32_t>();
  } else if (w.in_one_row) {
    const int64_t at = n * w.columns + k;
    const uint32_t byte = element<uint8_t>(w.codes, at / 2 * w.codes_row);
    code = static_cast<int>(byte >> 4 * (w.layout.places >> 4 * (at % 2) & 15) & 15);
  } else if (w.layout.codes == CodeType::bytes) {
    code = packed.template operator()<uint8_t>();
  } else {
    return number_at<Real>(w.codes_dtype, w.codes, r * w.codes_row + c);
  }
  if (w.layout.grid != CodeGrid::number) return grid_value<Real>(w.layout.grid, code);
  return static_cast<Real>(code - w.layout.offset);
}

// The group of a column. An unknown one is read as the first: who checks ids reports it.
template <class Index>
constexpr Index group_of(const PackedWeight& w, Index k) {
  if (!w.group_index) return k / w.group_columns;
  const Index id = w.index_dtype == DType::i64   ? element<int64_t>(w.group_index, k)
                   : w.index_dtype == DType::i32 ? element<int32_t>(w.group_index, k)
                                                 : element<uint8_t>(w.group_index, k);
  return id >= 0 && id < w.groups ? id : 0;
}

template <class Real>
constexpr Real zero_at(const PackedWeight& w, int64_t n, int64_t k) {
  const int64_t group_row = n / w.group_rows, group = group_of(w, k);
  const int64_t r = w.layout.by_input ? group : group_row;
  const int64_t c = w.layout.by_input ? group_row : group;
  if (w.layout.zeros == ZeroType::plain) {
    return number_at<Real>(w.zeros_dtype, w.zeros, r * w.zeros_row + c);
  }
  const int zero =
      packed_code<uint32_t>(w.zeros, w.zeros_row, w.layout.places, w.layout.zeros_axis, r, c);
  return static_cast<Real>(zero + (w.layout.zeros_less_one ? 1 : 0));
}

template <class Real>
constexpr Real scale_at(const PackedWeight& w, int64_t n, int64_t k) {
  if (w.layout.flat) {
    return number_at<Real>(w.scales_dtype, w.scales, (n * w.columns + k) / w.layout.flat);
  }
  const int64_t group_row = n / w.group_rows, group = group_of(w, k);
  const int64_t r = w.layout.by_input ? group : group_row;
  const int64_t c = w.layout.by_input ? group_row : group;
  const int64_t at = r * w.scales_row + c;
  if (w.layout.exponents) return e8m0<Real>(element<uint8_t>(w.scales, at));
  if (!w.layout.has_global_scale) return number_at<Real>(w.scales_dtype, w.scales, at);
  if (w.scales_dtype == DType::f64 || w.global_dtype == DType::f64) {
    return number_at<Real>(w.scales_dtype, w.scales, at) /
           number_at<Real>(w.global_dtype, w.global_scale, 0);
  }
  const float divisor = number_at<float>(w.global_dtype, w.global_scale, 0);
  return static_cast<Real>(number_at<float>(w.scales_dtype, w.scales, at) / divisor);
}

template <class Byte>
constexpr int plane_code(const Byte* block, const CodePlane& plane, int i) {
  const int span = 8 / plane.bits * plane.run, rest = i % span;
  const int byte = block[plane.at + i / span * plane.run + rest % plane.run];
  if (plane.bits == 8) return static_cast<int8_t>(byte);
  return (byte >> rest / plane.run * plane.bits & ((1 << plane.bits) - 1)) << plane.place;
}

struct BlockParts {
  int scale, least;
};

// Of the group-th group of a block.
template <class Byte>
constexpr BlockParts block_parts(const Byte* p, BlockScales kind, int group) {
  switch (kind) {
    case BlockScales::none: return {1, 1};
    case BlockScales::nibbles: return {p[group] & 15, p[group] >> 4};
    case BlockScales::six_bits: {
      const int low = p[group % 8] >> group / 8 * 4 & 15;
      const int high = p[8 + group % 4] >> group / 4 * 2 & 3;
      return {(low | high << 4) - 32, 0};
    }
    case BlockScales::six_bits_and_least:
      if (group < 4) return {p[group] & 63, p[4 + group] & 63};
      return {(p[4 + group] & 15) | p[group - 4] >> 6 << 4, p[4 + group] >> 4 | p[group] >> 6 << 4};
    case BlockScales::bytes: return {static_cast<int8_t>(p[group]), 0};
  }
  return {0, 0};
}

// All products are exact in float32: d, of 11 bits, a group's scale and a code.
template <class Real>
constexpr Real block_weight(const PackedWeight& w, int64_t n, int64_t k) {
  const BlockLayout& b = w.layout.block;
  const auto* block =
      static_cast<const uint8_t*>(w.codes) + n * w.codes_row + k / b.codes * b.bytes;
  const int i = static_cast<int>(k % b.codes);
  int code = plane_code(block, b.low, i);
  if (b.high.bits) code |= plane_code(block, b.high, i);
  const auto f16 = [&](int at) {
    return half<Real>(static_cast<uint16_t>(block[at] | block[at + 1] << 8));
  };
  const BlockParts part = block_parts(block + b.parts_at, b.parts, i / b.group);
  const Real value =
      f16(b.scale) * static_cast<Real>(part.scale) * static_cast<Real>(code - w.layout.offset);
  if (b.least < 0) return value;
  const Real least = f16(b.least) * static_cast<Real>(part.least);
  return b.parts == BlockScales::none ? value + least : value - least;
}

// (code - zero) scale: exact of Real double, rounded once of float.
template <class Real>
constexpr Real weight_at(const PackedWeight& w, int64_t n, int64_t k) {
  if (w.layout.codes == CodeType::blocks) return block_weight<Real>(w, n, k);
  Real code = code_at<Real>(w, n, k);
  if (w.layout.zeros != ZeroType::none) code = code - zero_at<Real>(w, n, k);
  return code * scale_at<Real>(w, n, k);
}

// x to float32 so that a rounding of it to 16 bits is the one of x: to the nearest odd one, where
// it is none (Boldo and Melquiond 2008).
template <class Real>
constexpr float odd_float(Real x) {
  const auto nearest = static_cast<float>(x);
  if (static_cast<Real>(nearest) == x || x != x) return nearest;
  auto bits = __builtin_bit_cast(uint32_t, nearest);
  const Real back = static_cast<Real>(nearest);
  if ((back < 0 ? -back : back) > (x < 0 ? -x : x)) --bits;
  return __builtin_bit_cast(float, bits | 1u);
}

}  // namespace decode
}  // namespace plumb
