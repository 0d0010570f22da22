// copy and repeat_heads: bytes moved row by row, any dtype.
#include <cstring>

#include "kernels/cpu/cpu_ops.h"

namespace plumb::cpu {

void CpuOps::do_copy(const Tensor& out, const Tensor& x) {
  if (x.numel() == 0) return;
  settle_for("memmove");
  const int64_t size = size_of(x.dtype());
  const bool whole = out.contiguous() && x.contiguous();
  const int64_t length = size * (whole ? x.numel() : x.dim(-1));
  const RowOffsets to(out), from(x);
  pool_.for_each(
      whole ? 1 : from.count(), 0.1 * static_cast<double>(length), [&](int64_t row, int) {
        std::memmove(out.data<char>() + (whole ? 0 : to[row] * size),
                     x.data<char>() + (whole ? 0 : from[row] * size), static_cast<size_t>(length));
      });
}

void CpuOps::do_repeat_heads(const Tensor& out, const Tensor& x) {
  const int64_t repeats = out.dim(1) / x.dim(1);
  for (int64_t head = 0; head < x.dim(1); ++head) {
    const Tensor one = x.slice(1, head, head + 1).expand(1, repeats);
    CpuOps::do_copy(out.slice(1, head * repeats, (head + 1) * repeats), one);
  }
}

}  // namespace plumb::cpu
