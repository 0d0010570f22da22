// add, mul, div, add_scalar, scale, activation, softcap, gated_activation, masked_add: out =
// R(f(inputs)), element by element.
//
// A unit of work is a piece of kPiece elements of what is one block of memory in all tensors; the
// row functions read, compute, round (the fused ops between their steps too) and write it in one
// pass. copy and repeat_heads move bytes block by block, any dtype.
#include <cstring>

#include "kernels/cpu/cpu_ops.h"

namespace plumb::cpu {

template <size_t Inputs, class Function>
void CpuOps::elementwise(const char* op, const Tensor& out, const Tensor* const (&inputs)[Inputs],
                         double cost, const Function& f) {
  const Format storage = format(op, out);
  if (out.numel() == 0) return;
  std::array<const Tensor*, Inputs + 1> all{&out};
  std::copy_n(inputs, Inputs, all.begin() + 1);
  const Block block = common_block(all);
  const auto rows = [&]<size_t... I>(std::index_sequence<I...>) {
    return std::array<RowOffsets, Inputs + 1>{RowOffsets(*all[I], block.axes)...};
  }
  (std::make_index_sequence<Inputs + 1>());

  const int64_t pieces = (block.length + kPiece - 1) / kPiece;
  pool_.for_each(rows[0].count() * pieces,
                 cost * static_cast<double>(std::min(block.length, kPiece)),
                 [&](int64_t unit, int) {
                   const int64_t row = unit / pieces, begin = unit % pieces * kPiece;
                   std::array<char*, Inputs + 1> at;
                   for (size_t i = 0; i <= Inputs; ++i) {
                     at[i] = storage.at(static_cast<char*>(all[i]->raw()), rows[i][row] + begin);
                   }
                   f(storage.rows(), at, std::min(kPiece, block.length - begin));
                 });
}

namespace {

// Cost of one element in units of ThreadPool::for_each, roughly.
constexpr double kCheap = 0.3, kDear = 2;

// The output's piece and the inputs'.
using One = std::array<char*, 2>;
using Two = std::array<char*, 3>;

}  // namespace

void CpuOps::do_add(const Tensor& out, const Tensor& a, const Tensor& b) {
  elementwise("add", out, {&a, &b}, kCheap, [](const RowFunctions& rows, const Two& at, int64_t n) {
    rows.add(at[0], at[1], at[2], n);
  });
}

void CpuOps::do_mul(const Tensor& out, const Tensor& a, const Tensor& b) {
  elementwise("mul", out, {&a, &b}, kCheap, [](const RowFunctions& rows, const Two& at, int64_t n) {
    rows.mul(at[0], at[1], at[2], n);
  });
}

void CpuOps::do_div(const Tensor& out, const Tensor& a, const Tensor& b) {
  elementwise("div", out, {&a, &b}, kCheap, [](const RowFunctions& rows, const Two& at, int64_t n) {
    rows.div(at[0], at[1], at[2], n);
  });
}

void CpuOps::do_add_scalar(const Tensor& out, const Tensor& x, double value) {
  elementwise("add_scalar", out, {&x}, kCheap,
              [&](const RowFunctions& rows, const One& at, int64_t n) {
                rows.add_scalar(at[0], at[1], static_cast<float>(value), n);
              });
}

void CpuOps::do_masked_add(const Tensor& out, const Tensor& x, const Tensor& mask) {
  elementwise(
      "masked_add", out, {&x, &mask}, kCheap,
      [](const RowFunctions& rows, const Two& at, int64_t n) { rows.add(at[0], at[1], at[2], n); });
}

void CpuOps::do_scale(const Tensor& out, const Tensor& x, double factor, ScaleOperation operation) {
  const auto apply =
      operation == ScaleOperation::multiply ? &RowFunctions::scale : &RowFunctions::divide;
  elementwise("scale", out, {&x}, kCheap, [&](const RowFunctions& rows, const One& at, int64_t n) {
    (rows.*apply)(at[0], at[1], static_cast<float>(factor), n);
  });
}

void CpuOps::do_activation(const Tensor& out, const Tensor& x, Activation function) {
  elementwise("activation", out, {&x}, kDear,
              [&](const RowFunctions& rows, const One& at, int64_t n) {
                rows.activation[static_cast<size_t>(function)](at[0], at[1], n);
              });
}

void CpuOps::do_gated_activation(const Tensor& out, const Tensor& gate, const Tensor& up,
                                 Activation function) {
  elementwise("gated_activation", out, {&gate, &up}, kDear,
              [&](const RowFunctions& rows, const Two& at, int64_t n) {
                rows.gated_activation[static_cast<size_t>(function)](at[0], at[1], at[2], n);
              });
}

void CpuOps::do_softcap(const Tensor& out, const Tensor& x, double cap) {
  elementwise("softcap", out, {&x}, kDear, [&](const RowFunctions& rows, const One& at, int64_t n) {
    rows.softcap(at[0], at[1], static_cast<float>(cap), n);
  });
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
