// add, mul, scale, activation, softcap, gated_activation, masked_add: out = R(f(inputs)), element
// by element.
//
// A unit of work is a piece of kPiece elements of one row, read into float32, computed there and
// rounded back; contiguous tensors are one long row. The fused ops round between their steps in
// that buffer.
#include "kernels/cpu/cpu_ops.h"

namespace plumb::cpu {

template <int Inputs, class Function>
void CpuOps::elementwise(const char* op, const Tensor& out,
                         const std::array<const Tensor*, Inputs>& inputs, double cost,
                         const Function& f) {
  const Format storage = format(op, out);
  if (out.numel() == 0) return;
  bool contiguous = out.contiguous();
  for (const Tensor* x : inputs) contiguous = contiguous && x->contiguous();
  // As one row, or row by row.
  const auto flat = [=](const Tensor& t) { return contiguous ? t.view({t.numel()}) : t; };
  const Tensor to = flat(out);
  std::array<Tensor, Inputs> from;
  for (size_t i = 0; i < Inputs; ++i) from[i] = flat(*inputs[i]);
  const RowOffsets to_rows(to);
  const auto from_rows = [&]<size_t... I>(std::index_sequence<I...>) {
    return std::array<RowOffsets, Inputs>{RowOffsets(from[I])...};
  }
  (std::make_index_sequence<Inputs>());

  const int64_t length = to.dim(-1), pieces = (length + kPiece - 1) / kPiece;
  pool_.for_each(to_rows.count() * pieces, cost * static_cast<double>(std::min(length, kPiece)),
                 [&](int64_t unit, int) {
                   const int64_t row = unit / pieces, begin = unit % pieces * kPiece;
                   const int64_t n = std::min(kPiece, length - begin);
                   float buffers[Inputs + 1][kPiece];
                   std::array<const float*, Inputs> x;
                   for (size_t i = 0; i < Inputs; ++i) {
                     x[i] = storage.read(storage.at(from[i], from_rows[i][row] + begin), buffers[i],
                                         n);
                   }
                   char* target = storage.at(static_cast<char*>(to.raw()), to_rows[row] + begin);
                   float* y = storage.target(target, buffers[Inputs]);
                   f(storage, y, x, n);
                   storage.write(target, y, n);
                 });
}

namespace {

// Cost of one element in units of ThreadPool::for_each, roughly.
constexpr double kCheap = 0.3, kDear = 2;

using One = std::array<const float*, 1>;
using Two = std::array<const float*, 2>;

}  // namespace

void CpuOps::do_add(const Tensor& out, const Tensor& a, const Tensor& b) {
  elementwise<2>(
      "add", out, {&a, &b}, kCheap,
      [&](const Format&, float* y, const Two& x, int64_t n) { simd_->add(y, x[0], x[1], n); });
}

void CpuOps::do_mul(const Tensor& out, const Tensor& a, const Tensor& b) {
  elementwise<2>(
      "mul", out, {&a, &b}, kCheap,
      [&](const Format&, float* y, const Two& x, int64_t n) { simd_->mul(y, x[0], x[1], n); });
}

void CpuOps::do_masked_add(const Tensor& out, const Tensor& x, const Tensor& mask) {
  elementwise<2>(
      "masked_add", out, {&x, &mask}, kCheap,
      [&](const Format&, float* y, const Two& in, int64_t n) { simd_->add(y, in[0], in[1], n); });
}

void CpuOps::do_scale(const Tensor& out, const Tensor& x, double factor, ScaleOperation operation) {
  const auto apply = operation == ScaleOperation::multiply ? &Simd::scale : &Simd::divide;
  const float value = static_cast<float>(factor);
  elementwise<1>("scale", out, {&x}, kCheap,
                 [&](const Format&, float* y, const One& in, int64_t n) {
                   (simd_->*apply)(y, in[0], value, n);
                 });
}

void CpuOps::do_activation(const Tensor& out, const Tensor& x, Activation function) {
  elementwise<1>("activation", out, {&x}, kDear,
                 [&](const Format&, float* y, const One& in, int64_t n) {
                   simd_->activation[static_cast<size_t>(function)](y, in[0], n);
                 });
}

void CpuOps::do_gated_activation(const Tensor& out, const Tensor& gate, const Tensor& up,
                                 Activation function) {
  elementwise<2>("gated_activation", out, {&gate, &up}, kDear,
                 [&](const Format& storage, float* y, const Two& x, int64_t n) {
                   float activated[kPiece];  // y may be x[1] itself
                   simd_->activation[static_cast<size_t>(function)](activated, x[0], n);
                   storage.round(activated, n);
                   simd_->mul(y, activated, x[1], n);
                 });
}

void CpuOps::do_softcap(const Tensor& out, const Tensor& x, double cap) {
  const float value = static_cast<float>(cap);
  elementwise<1>("softcap", out, {&x}, kDear,
                 [&](const Format& storage, float* y, const One& in, int64_t n) {
                   simd_->divide(y, in[0], value, n);
                   storage.round(y, n);
                   simd_->activation[static_cast<size_t>(Activation::tanh)](y, y, n);
                   storage.round(y, n);
                   simd_->scale(y, y, value, n);
                 });
}

}  // namespace plumb::cpu
