// Elementwise ops: out = R(formula(inputs)), kernels/ops/formulas.h.
//
// A unit of work is a piece of kPiece elements of what is one block of memory in all tensors; the
// row functions read, compute, round (the fused ops between their steps too) and write it in one
// pass. copy and repeat_heads move bytes block by block, any dtype.
#include <cstring>

#include "kernels/cpu/cpu_ops.h"

namespace plumb::cpu {

template <size_t Tensors>
void CpuOps::elementwise(const MapCall& call, const std::array<const Tensor*, Tensors>& all) {
  // Cost of one element in units of ThreadPool::for_each, roughly.
  constexpr double kCheap = 0.3, kDear = 2;
  const Format storage = format(call.row.name, call.a);
  if (call.out.numel() == 0) return;
  const Block block = common_block(all);
  const auto rows = [&]<size_t... I>(std::index_sequence<I...>) {
    return std::array<RowOffsets, Tensors>{RowOffsets(*all[I], block.axes)...};
  }
  (std::make_index_sequence<Tensors>());

  std::array<int64_t, Tensors> sizes;
  for (size_t i = 0; i < Tensors; ++i) sizes[i] = size_of(all[i]->dtype());
  const auto number = static_cast<float>(call.number);
  const auto map = storage.rows().map[static_cast<size_t>(call.formula)];
  const int64_t pieces = (block.length + kPiece - 1) / kPiece;
  const double cost = call.row.flops > 1 ? kDear : kCheap;
  pool_.for_each(
      rows[0].count() * pieces, cost * static_cast<double>(std::min(block.length, kPiece)),
      [&](int64_t unit, int) {
        const int64_t row = unit / pieces, begin = unit % pieces * kPiece;
        std::array<char*, Tensors> at;
        for (size_t i = 0; i < Tensors; ++i) {
          at[i] = static_cast<char*>(all[i]->raw()) + (rows[i][row] + begin) * sizes[i];
        }
        map(at[0], at[1], at[Tensors - 1], number, std::min(kPiece, block.length - begin));
      });
}

void CpuOps::do_map(const MapCall& call) {
  if (call.b) elementwise<3>(call, {&call.out, &call.a, call.b});
  else elementwise<2>(call, {&call.out, &call.a});
}

void CpuOps::do_masked_add(const Tensor& out, const Tensor& x, const Tensor& mask) {
  do_map({row_of(OpId::masked_add), Formula::add, out, x, &mask});
}

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
