// The gradients of Mamba2's depthwise causal convolution.
//
// x, d_out, d_x [B, T, C], weight, d_weight [C, 1, K]. One unit of work is a piece of channels of
// one batch row, its tokens in order: rings hold the last K rows of x and of the gradient by the
// forward's sum. What a token adds to the gradients of weight and bias goes to sums of kTokens
// tokens, these to the batch row's, and those are added up in order.
#include "kernels/cpu/cpu_ops.h"

namespace plumb::cpu {
namespace {

constexpr int64_t kBackwardChannels = 256;  // of a unit
constexpr int64_t kBackwardTokens = 64;

}  // namespace

void CpuOps::do_causal_conv1d_backward(const Tensor& d_x, const Tensor& d_weight,
                                       const Tensor& d_bias, const Tensor& x, const Tensor& weight,
                                       const Tensor& bias, const Tensor& d_out,
                                       std::optional<Activation> function) {
  const Format storage = format("causal_conv1d_backward", x);
  const RowFunctions& floats = simd_->floats();
  const int64_t batch = x.dim(0), tokens = x.dim(1), channels = x.dim(2), width = weight.dim(2);
  const int64_t pieces = (channels + kBackwardChannels - 1) / kBackwardChannels;
  const int64_t line = kBackwardChannels, rows = 4 * width + 4;
  Arena::Scope scope(arena());
  const Tensor scratch = arena().take(DType::f32, {pool_.size(), rows, line});
  const Tensor sums =
      arena().take(DType::f32, {std::max<int64_t>(1, batch), width + 1, pieces * line});
  const auto sums_of = [&](int64_t row, int64_t k, int64_t first) {
    return sums.data<float>() + (row * (width + 1) + k) * pieces * line + first;
  };
  const double cost = 0.3 * static_cast<double>((3 * width + 10) * tokens * line);
  pool_.for_each(batch * pieces, cost, [&](int64_t unit, int worker) {
    const int64_t row = unit / pieces, first = unit % pieces * line;
    const int64_t n = std::min(line, channels - first);
    float* w = scratch.data<float>() + worker * rows * line;
    float *past = w + width * line, *through = past + width * line;  // rings
    float *some = through + width * line, *start = some + (width + 1) * line;
    float *z = start + line, *d = z + line;
    std::fill_n(w, rows * line, 0.0f);
    for (int64_t c = 0; c < n; ++c) {
      for (int64_t k = 0; k < width; ++k) {
        storage.widen(w + k * line + c, storage.at(weight, (first + c) * weight.stride(0) + k), 1);
      }
    }
    if (bias.defined()) storage.widen(start, storage.at(bias, first), n);
    for (int64_t k = 0; k <= width; ++k) std::fill_n(sums_of(row, k, first), line, 0.0f);
    const auto flush = [&] {
      for (int64_t k = 0; k <= width; ++k) {
        floats.add(sums_of(row, k, first), sums_of(row, k, first), some + k * line, n);
      }
      std::fill_n(some, (width + 1) * line, 0.0f);
    };
    // Element k of the forward's sum at t is behind `past` of t - width + 1 + k.
    const auto ring = [&](float* of, int64_t t) { return of + (t + width) % width * line; };
    for (int64_t t = 0; t < tokens + width - 1; ++t) {
      float* e = ring(through, t);
      if (t >= tokens) {
        std::fill_n(e, n, 0.0f);
      } else {
        storage.widen(ring(past, t), storage.at(x, row * x.stride(0) + t * x.stride(1) + first), n);
        storage.widen(d, storage.at(d_out, row * d_out.stride(0) + t * d_out.stride(1) + first), n);
        if (function) {
          std::copy_n(start, n, z);
          for (int64_t k = 0; k < width; ++k) {
            simd_->multiply_add(z, w + k * line, ring(past, t + 1 + k), n);
          }
          storage.rows().round(z, z, n);
          floats.apply(formula_of(*function, Formula::silu_backward), e, z, d, n);
        } else {
          std::copy_n(d, n, e);
        }
        for (int64_t k = 0; k < width; ++k) {
          simd_->multiply_add(some + k * line, e, ring(past, t + 1 + k), n);
        }
        floats.add(some + width * line, some + width * line, e, n);
        if ((t + 1) % kBackwardTokens == 0) flush();
      }
      if (t + 1 < width) continue;
      std::fill_n(z, n, 0.0f);
      for (int64_t k = 0; k < width; ++k) {
        simd_->multiply_add(z, w + k * line, ring(through, t - k), n);
      }
      const int64_t at = row * d_x.stride(0) + (t + 1 - width) * d_x.stride(1) + first;
      storage.rows().narrow(storage.at(d_x.data<char>(), at), z, n);
    }
    flush();
  });
  for (int64_t row = 1; row < batch; ++row) {
    floats.add(sums_of(0, 0, 0), sums_of(0, 0, 0), sums_of(row, 0, 0), (width + 1) * pieces * line);
  }
  if (batch == 0) std::fill_n(sums.data<float>(), (width + 1) * pieces * line, 0.0f);
  for (int64_t c = 0; d_weight.defined() && c < channels; ++c) {
    for (int64_t k = 0; k < width; ++k) {
      storage.rows().narrow(storage.at(d_weight.data<char>(), c * d_weight.stride(0) + k),
                            sums_of(0, k, c), 1);
    }
  }
  if (d_bias.defined()) {
    storage.rows().narrow(d_bias.raw(), sums_of(0, width, 0), channels);
  }
}

}  // namespace plumb::cpu
