// A row is decoded a group at a time, whose scale and zero are read once; what a code means is
// looked up. Blocks, and columns with groups of their own, go element by element.
#include "kernels/cpu/decode_rows.h"

#include <algorithm>
#include <array>

namespace plumb::cpu {
namespace {

template <class Real>
using CodeValues = std::array<Real, 16>;

// Of codes of 4 bits, less the layout's offset.
template <class Real>
CodeValues<Real> values_of_codes(const LayoutRow& layout) {
  CodeValues<Real> out{};
  for (int code = 0; code < 16; ++code) {
    out[static_cast<size_t>(code)] = layout.grid == CodeGrid::number
                                         ? static_cast<Real>(code - layout.offset)
                                         : decode::grid_value<Real>(layout.grid, code);
  }
  return out;
}

const std::array<float, 256>& values_of_bytes(DType dtype) {
  const auto made = [](DType of) {
    std::array<float, 256> out{};
    for (int i = 0; i < 256; ++i) {
      const auto code = static_cast<uint8_t>(i);
      out[static_cast<size_t>(i)] = decode::number_at<float>(of, &code, 0);
    }
    return out;
  };
  static const std::array<float, 256> e4m3 = made(DType::f8_e4m3), e5m2 = made(DType::f8_e5m2),
                                      whole = made(DType::i8);
  return dtype == DType::f8_e4m3 ? e4m3 : dtype == DType::f8_e5m2 ? e5m2 : whole;
}

template <class Real>
float finished(Real value) {
  if constexpr (sizeof(Real) == sizeof(float)) return value;
  else return decode::odd_float(value);
}

template <class Real>
class RowDecoder {
 public:
  RowDecoder(const PackedWeight& weight, int64_t n)
      : w_(weight), n_(n), of_codes_(values_of_codes<Real>(weight.layout)) {}

  void run(int64_t first, int64_t count, float* to) const {
    const int64_t last = first + count;
    if (w_.layout.codes == CodeType::blocks || w_.group_index || w_.in_one_row) {
      for (int64_t k = first; k < last; ++k) {
        *to++ = finished(decode::weight_at<Real>(w_, n_, k));
      }
      return;
    }
    for (int64_t k = first, end = 0; k < last; to += end - k, k = end) {
      end = std::min(last, end_of_group(k));
      group(k, end, to);
    }
  }

 private:
  int64_t end_of_group(int64_t k) const {
    if (w_.layout.flat == 0) return (k / w_.group_columns + 1) * w_.group_columns;
    return k + w_.layout.flat - (n_ * w_.columns + k) % w_.layout.flat;
  }

  void group(int64_t first, int64_t last, float* to) const {
    const Real scale = decode::scale_at<Real>(w_, n_, first);
    const bool has_zeros = w_.layout.zeros != ZeroType::none;
    const Real zero = has_zeros ? decode::zero_at<Real>(w_, n_, first) : Real{0};
    const auto each = [&](const auto& code) {
      for (int64_t k = first; k < last; ++k) *to++ = finished((code(k) - zero) * scale);
    };
    const auto place = [&](int64_t i) { return 4 * (w_.layout.places >> 4 * i & 15); };
    const auto value = [&](uint32_t word, uint32_t shift) { return of_codes_[word >> shift & 15]; };
    const auto* bytes = static_cast<const uint8_t*>(w_.codes) + n_ * w_.codes_row;
    const auto* words = static_cast<const uint32_t*>(w_.codes);
    if (w_.layout.codes == CodeType::bytes) {
      return each([&](int64_t k) { return value(bytes[k / 2], place(k % 2)); });
    }
    if (w_.layout.codes != CodeType::words) {
      const std::array<float, 256>& values = values_of_bytes(w_.codes_dtype);
      return each([&](int64_t k) { return static_cast<Real>(values[bytes[k]]); });
    }
    if (!w_.layout.by_input) {
      const uint32_t* row = words + n_ * w_.codes_row;
      return each([&](int64_t k) { return value(row[k / 8], place(k % 8)); });
    }
    if (w_.layout.packed_axis == 0) {
      return each([&](int64_t k) { return value(words[k / 8 * w_.codes_row + n_], place(k % 8)); });
    }
    const uint32_t shift = place(n_ % 8);
    each([&](int64_t k) { return value(words[k * w_.codes_row + n_ / 8], shift); });
  }

  const PackedWeight& w_;
  const int64_t n_;
  const CodeValues<Real> of_codes_;
};

}  // namespace

void decode_row(const PackedWeight& weight, int64_t n, int64_t first, int64_t count, float* to) {
  RowDecoder<float>(weight, n).run(first, count, to);
}

void decode_row_oddly(const PackedWeight& weight, int64_t n, int64_t first, int64_t count,
                      float* to) {
  RowDecoder<double>(weight, n).run(first, count, to);
}

}  // namespace plumb::cpu
