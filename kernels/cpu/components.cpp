// transpose, mask_fill, position_ids, cumsum: elements moved or chosen one by one, running sums.
#include <algorithm>
#include <array>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/plain_loops.h"

namespace plumb::cpu {
namespace {

// Calls f with a number as wide as the elements: their bits are moved, not computed with.
template <class F>
void with_bits(DType dtype, F f) {
  if (size_of(dtype) == 4) f(uint32_t{});
  else f(uint16_t{});
}

}  // namespace

void CpuOps::do_transpose(const Tensor& out, const Tensor& x) {
  require_storage("transpose", x);
  settle_for("scalars");
  exchange_last_axes(out, x);
}

void CpuOps::exchange_last_axes(const Tensor& out, const Tensor& x) {
  if (x.numel() == 0) return;
  constexpr int64_t kTile = 32;  // rows and columns that stay in the first cache
  const RowOffsets source(x), target(out);
  const int64_t rows = x.dim(-2), columns = x.dim(-1);
  const int64_t strips = (columns + kTile - 1) / kTile;
  const double cost = 0.5 * static_cast<double>(rows * std::min(columns, kTile));
  with_bits(x.dtype(), [&]<class T>(T) {
    pool_.for_each(target.count() / columns * strips, cost, [&](int64_t unit, int) {
      const int64_t matrix = unit / strips, column0 = unit % strips * kTile;
      const int64_t column1 = std::min(columns, column0 + kTile);
      std::array<const T*, kTile> from;
      for (int64_t row0 = 0; row0 < rows; row0 += kTile) {
        const auto count = static_cast<size_t>(std::min(rows - row0, kTile));
        for (size_t i = 0; i < count; ++i) {
          from[i] = x.data<T>() + source[matrix * rows + row0 + static_cast<int64_t>(i)];
        }
        for (int64_t column = column0; column < column1; ++column) {
          T* to = out.data<T>() + target[matrix * columns + column] + row0;
          for (size_t i = 0; i < count; ++i) to[i] = from[i][column];
        }
      }
    });
  });
}

void CpuOps::do_mask_fill(const Tensor& out, const Tensor& x, const Tensor& mask, double value) {
  require_storage("mask_fill", x);
  settle_for("scalars");
  if (x.numel() == 0) return;
  const RowOffsets source(x), target(out), flags(mask);
  const int64_t width = x.dim(-1);
  with_bits(x.dtype(), [&]<class T>(T) {
    T fill{};
    store(x.dtype(), &fill, value);
    pool_.for_each(source.count(), 0.3 * static_cast<double>(width), [&](int64_t row, int) {
      const T* from = x.data<T>() + source[row];
      const bool* filled = mask.data<bool>() + flags[row];
      T* to = out.data<T>() + target[row];
      // Without a branch, which random masks would mispredict.
      for (int64_t i = 0; i < width; ++i) {
        const auto chosen = static_cast<T>(-static_cast<T>(filled[i]));
        to[i] = static_cast<T>((fill & chosen) | (from[i] & ~chosen));
      }
    });
  });
}

// A unit of work is a range of adjacent columns, or one row if the sum is along rows.
void CpuOps::do_cumsum(const Tensor& out, const Tensor& x, int64_t axis) {
  if (plain::has(x.dtype())) {
    settle_for_simd();
    return plain::cumsum(pool_, out, x, static_cast<int>(axis));
  }
  const Format storage = format("cumsum", x);
  if (x.numel() == 0) return;
  const int at = static_cast<int>(axis);
  const bool along_rows = at == x.rank() - 1;
  const Tensor first = x.slice(at, 0, 1), out_first = out.slice(at, 0, 1);
  const RowOffsets from(first), to(out_first);
  const int64_t length = x.dim(at), width = first.dim(-1), pieces = (width + kPiece - 1) / kPiece;
  pool_.for_each(from.count() * pieces, 0.5 * static_cast<double>(length * std::min(width, kPiece)),
                 [&](int64_t unit, int) {
                   const int64_t row = unit / pieces, begin = unit % pieces * kPiece;
                   float line[kPiece], sums[kPiece] = {};
                   const char* source = storage.at(x, from[row] + begin);
                   char* target = storage.at(static_cast<char*>(out.raw()), to[row] + begin);
                   if (along_rows) {
                     for (int64_t i = 0; i < length; i += kPiece) {
                       const int64_t n = std::min(kPiece, length - i);
                       storage.widen(line, storage.at(source, i), n);
                       for (int64_t j = 0; j < n; ++j) line[j] = sums[0] += line[j];
                       storage.write(storage.at(target, i), line, n);
                     }
                     return;
                   }
                   const int64_t n = std::min(kPiece, width - begin);
                   for (int64_t i = 0; i < length; ++i) {
                     storage.widen(line, storage.at(source, i * x.stride(at)), n);
                     simd_->floats().add(sums, sums, line, n);
                     storage.write(storage.at(target, i * out.stride(at)), sums, n);
                   }
                 });
}

void CpuOps::do_position_ids(const Tensor& out, const Tensor& valid, int64_t offset) {
  settle_for("scalars");
  for (int64_t b = 0; b < out.dim(0); ++b) {
    int64_t* to = out.data<int64_t>() + b * out.stride(0);
    const bool* real = valid.defined() ? valid.data<bool>() + b * valid.stride(0) : nullptr;
    int64_t next = offset;
    for (int64_t t = 0; t < out.dim(1); ++t) to[t] = !real || real[t] ? next++ : 0;
  }
}

}  // namespace plumb::cpu
