// cast and mask_rows: rows converted, rows kept or zeroed.
#include <cstring>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/ops/casts.h"

namespace plumb::cpu {

void CpuOps::do_cast(const Tensor& out, const Tensor& x) {
  settle_for_simd();
  if (x.numel() == 0) return;
  const RowOffsets source(x), target(out);
  const int64_t width = x.dim(-1);
  if (!is_stored(out.dtype()) || !is_stored(x.dtype())) {
    const int64_t size = size_of(x.dtype()), out_size = size_of(out.dtype());
    return pool_.for_each(source.count(), 5 * static_cast<double>(width), [&](int64_t row, int) {
      const char* in = x.data<char>() + source[row] * size;
      char* to = out.data<char>() + target[row] * out_size;
      for (int64_t i = 0; i < width; ++i) {
        store_number(out.dtype(), to + i * out_size, load_number(x.dtype(), in + i * size));
      }
    });
  }
  const Format from(*simd_, x.dtype()), to(*simd_, out.dtype());
  const int64_t pieces = (width + kPiece - 1) / kPiece;
  pool_.for_each(source.count() * pieces, 0.3 * static_cast<double>(std::min(width, kPiece)),
                 [&](int64_t unit, int) {
                   const int64_t row = unit / pieces, begin = unit % pieces * kPiece;
                   const int64_t n = std::min(kPiece, width - begin);
                   float buffer[kPiece];
                   to.write(to.at(static_cast<char*>(out.raw()), target[row] + begin),
                            from.read(from.at(x, source[row] + begin), buffer, n), n);
                 });
}

void CpuOps::do_mask_rows(const Tensor& out, const Tensor& x, const Tensor& valid) {
  if (x.numel() == 0) return;
  settle_for("memmove");
  const RowOffsets source(x), target(out);
  const int64_t tokens = x.dim(1), size = size_of(x.dtype()), bytes = size * x.dim(2);
  pool_.for_each(source.count(), 0.1 * static_cast<double>(bytes), [&](int64_t row, int) {
    char* to = out.data<char>() + target[row] * size;
    if (valid.data<bool>()[row / tokens * valid.stride(0) + row % tokens]) {
      std::memmove(to, x.data<char>() + source[row] * size, static_cast<size_t>(bytes));
    } else {
      std::memset(to, 0, static_cast<size_t>(bytes));
    }
  });
}

}  // namespace plumb::cpu
