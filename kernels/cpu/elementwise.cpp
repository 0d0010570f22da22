// Elementwise ops: out = R(formula(inputs)), kernels/ops/formulas.h.
//
// A unit of work is a piece of kPiece elements of what is one block of memory in all tensors; the
// row functions read, compute, round (the fused ops between their steps too) and write it in one
// pass; what a broadcast repeats there is written to a piece first. copy and repeat_heads move
// bytes block by block, any dtype.
#include <cstring>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/plain_loops.h"

namespace plumb::cpu {

namespace {

// The first of n elements of a piece for all of them.
void repeat(char* piece, const char* element, int64_t size, int64_t n) {
  const auto fill = [&]<class T>(T value) {
    std::memcpy(&value, element, sizeof value);
    std::fill_n(reinterpret_cast<T*>(piece), n, value);
  };
  size == 4 ? fill(uint32_t{}) : size == 2 ? fill(uint16_t{}) : fill(uint8_t{});
}

}  // namespace

template <size_t Tensors>
void CpuOps::elementwise(const MapCall& call, const std::array<const Tensor*, Tensors>& all) {
  // Cost of one element in units of ThreadPool::for_each, roughly.
  constexpr double kCheap = 0.3, kDear = 2;
  const Tensor& stored = *all[Tensors - 1];  // the first input may be a condition
  const bool of_bools = Tensors == 3 && stored.dtype() == DType::boolean;
  if (!of_bools) require_storage(call.row.name, stored);
  settle_for_simd();
  if (call.out.numel() == 0) return;
  const Block block = common_block(all);
  const auto rows = [&]<size_t... I>(std::index_sequence<I...>) {
    return std::array<RowOffsets, Tensors>{RowOffsets(*all[I], block.axes)...};
  }
  (std::make_index_sequence<Tensors>());

  std::array<int64_t, Tensors> sizes;
  for (size_t i = 0; i < Tensors; ++i) sizes[i] = size_of(all[i]->dtype());
  const auto number = static_cast<float>(call.number), shift = static_cast<float>(call.shift);
  const auto formula = static_cast<size_t>(call.formula);
  const MapRow map =
      of_bools ? simd_->map_bools[formula] : Format(*simd_, stored.dtype()).rows().map[formula];
  const int64_t pieces = (block.length + kPiece - 1) / kPiece;
  const double cost = call.row.flops > 1 ? kDear : kCheap;
  const auto run = [&](int64_t unit, const auto& find) {
    const int64_t row = unit / pieces, begin = unit % pieces * kPiece;
    const int64_t n = std::min(kPiece, block.length - begin);
    std::array<char*, Tensors> at;
    for (size_t i = 0; i < Tensors; ++i) at[i] = find(i, rows[i][row], begin, n);
    map(at[0], at[1], at[std::min(Tensors, size_t{3}) - 1], at[Tensors - 1], number, shift, n);
  };
  const int64_t units = rows[0].count() * pieces;
  const double of_unit = cost * static_cast<double>(std::min(block.length, kPiece));
  const auto element = [&](size_t i, int64_t offset) {
    return static_cast<char*>(all[i]->raw()) + offset * sizes[i];
  };
  if (Tensors == 2 || !call.broadcasts) {
    return pool_.for_each(units, of_unit, [&](int64_t unit, int) {
      run(unit, [&](size_t i, int64_t first, int64_t begin, int64_t) {
        return element(i, first + begin);
      });
    });
  }
  pool_.for_each(units, of_unit, [&](int64_t unit, int) {
    alignas(kTensorAlignment) std::array<char[4 * kPiece], Tensors> repeated;
    run(unit, [&](size_t i, int64_t first, int64_t begin, int64_t n) {
      if (!repeats_last(*all[i], block.axes)) return element(i, first + begin);
      repeat(repeated[i], element(i, first), sizes[i], n);
      return &repeated[i][0];
    });
  });
}

void CpuOps::do_map(const MapCall& call) {
  const bool of_bools = call.storage() == DType::boolean && takes_bools(call.row.id);
  if (plain::has(call.storage()) && !of_bools) {
    settle_for_simd();
    return plain::map(pool_, call);
  }
  if (call.c) elementwise<4>(call, {&call.out, &call.a, call.b, call.c});
  else if (call.b) elementwise<3>(call, {&call.out, &call.a, call.b});
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
