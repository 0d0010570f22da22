// copy and repeat_heads: bytes moved block by block, any dtype.
#include <cstring>

#include "kernels/cpu/cpu_ops.h"

namespace plumb::cpu {

void CpuOps::do_copy(const Tensor& out, const Tensor& x) {
  if (x.numel() == 0) return;
  settle_for("memmove");
  constexpr int64_t kChunk = int64_t{1} << 18;  // bytes, of a block that threads share
  const Block block = common_block(std::array{&out, &x});
  const int64_t size = size_of(x.dtype()), bytes = size * block.length;
  const int64_t chunks = (bytes + kChunk - 1) / kChunk;
  const RowOffsets to(out, block.axes), from(x, block.axes);
  pool_.for_each(to.count() * chunks, 0.1 * static_cast<double>(std::min(bytes, kChunk)),
                 [&](int64_t unit, int) {
                   const int64_t row = unit / chunks, begin = unit % chunks * kChunk;
                   std::memmove(out.data<char>() + to[row] * size + begin,
                                x.data<char>() + from[row] * size + begin,
                                static_cast<size_t>(std::min(kChunk, bytes - begin)));
                 });
}

void CpuOps::do_repeat_heads(const Tensor& out, const Tensor& x) {
  if (x.numel() == 0) return;
  settle_for("memmove");
  constexpr int64_t kChunk = int64_t{1} << 14;  // bytes, that wait in the first cache for the rest
  const int64_t repeats = out.dim(1) / x.dim(1), size = size_of(x.dtype());
  const Tensor first = out.every(1, 0, repeats);
  const Block block = common_block(std::array{&first, &x});
  const int64_t bytes = size * block.length, chunks = (bytes + kChunk - 1) / kChunk;
  const RowOffsets to(first, block.axes), from(x, block.axes);
  const auto cost = 0.1 * static_cast<double>(repeats * std::min(bytes, kChunk));
  pool_.for_each(to.count() * chunks, cost, [&](int64_t unit, int) {
    const int64_t row = unit / chunks, begin = unit % chunks * kChunk;
    const auto count = static_cast<size_t>(std::min(kChunk, bytes - begin));
    const char* source = x.data<char>() + from[row] * size + begin;
    for (int64_t i = 0; i < repeats; ++i) {
      std::memcpy(out.data<char>() + (to[row] + i * out.stride(1)) * size + begin, source, count);
    }
  });
}

}  // namespace plumb::cpu
