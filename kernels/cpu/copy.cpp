// copy and repeat_heads: bytes moved block by block, any dtype.
#include <cstring>

#include "kernels/cpu/cpu_ops.h"

namespace plumb::cpu {

void CpuOps::do_copy(const Tensor& out, const Tensor& x) {
  if (x.numel() == 0) return;
  settle_for("memmove");
  // What is one block of memory on both sides, in chunks that threads share.
  constexpr int64_t kChunk = int64_t{1} << 18;  // bytes
  int inner = 1;
  int64_t length = x.dim(-1);
  for (int axis = x.rank() - 2; axis >= 0; --axis, ++inner) {
    const bool whole = out.stride(axis) == length && x.stride(axis) == length;
    if (!whole && x.dim(axis) != 1) break;
    length *= x.dim(axis);
  }
  const int64_t size = size_of(x.dtype()), bytes = size * length;
  const int64_t chunks = (bytes + kChunk - 1) / kChunk;
  const RowOffsets to(out, inner), from(x, inner);
  pool_.for_each(to.count() * chunks, 0.1 * static_cast<double>(std::min(bytes, kChunk)),
                 [&](int64_t unit, int) {
                   const int64_t block = unit / chunks, begin = unit % chunks * kChunk;
                   std::memmove(out.data<char>() + to[block] * size + begin,
                                x.data<char>() + from[block] * size + begin,
                                static_cast<size_t>(std::min(kChunk, bytes - begin)));
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
