// Depthwise causal convolution of Mamba2, with its activation and its state.
//
// x [B, T, C], weight [C, 1, K], states [B, C, K]. One unit of work is a range of tokens of a piece
// of channels: its inputs, K - 1 older columns included, are float32 rows of channels, and an
// output row is the bias plus K products of rows. Rounds after the sum and after the activation.
#include "kernels/cpu/cpu_ops.h"

namespace plumb::cpu {
namespace {

constexpr int64_t kChannels = 256;  // of a unit
constexpr int64_t kTokens = 64;

// [C, K] as K rows of channels in float32.
void transpose_columns(float* to, const Format& storage, const char* from, int64_t stride,
                       int64_t channels, int64_t width) {
  std::array<float, 16> columns;
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t k = 0; k < width; k += 16) {
      const int64_t n = std::min<int64_t>(16, width - k);
      storage.widen(columns.data(), storage.at(from, c * stride + k), n);
      for (int64_t i = 0; i < n; ++i) to[(k + i) * kChannels + c] = columns[static_cast<size_t>(i)];
    }
  }
}

// The last `width` columns of before ++ x for some channels of one batch row; after may be before.
template <class Bits>
void keep_state(const Tensor& after, const Tensor& before, const Tensor& x, int64_t row,
                int64_t first, int64_t channels) {
  const int64_t tokens = x.dim(1), width = after.dim(2);
  const auto at = [&](const Tensor& t, int64_t c, int64_t k) {
    return t.data<Bits>() + row * t.stride(0) + c * t.stride(1) + k;
  };
  for (int64_t c = first; c < first + channels; ++c) {
    for (int64_t k = 0; k < width; ++k) {
      const int64_t column = tokens + k;  // of before ++ x
      if (column >= width) {
        *at(after, c, k) = *at(x, column - width, c);
      } else {
        *at(after, c, k) = before.defined() ? *at(before, c, column) : Bits{0};
      }
    }
  }
}

}  // namespace

void CpuOps::do_causal_conv1d(const Tensor& out, const Tensor& state_after, const Tensor& x,
                              const Tensor& weight, const Tensor& bias, const Tensor& state_before,
                              std::optional<Activation> function) {
  const Format storage = format("causal_conv1d", x);
  const int64_t tokens = x.dim(1), channels = x.dim(2), width = weight.dim(2);
  // Only the first range of tokens touches the states, so that both may be one tensor.
  const int64_t range = std::max(kTokens, width);
  const int64_t ranges = std::max<int64_t>(1, (tokens + range - 1) / range);
  const int64_t pieces = (channels + kChannels - 1) / kChannels;
  const int64_t floats = (2 * width + range) * kChannels;
  Arena::Scope scope(arena());
  const Tensor scratch = arena().take(DType::f32, {pool_.size(), floats});
  const double cost = static_cast<double>(std::min(range, tokens) * std::min(channels, kChannels));

  pool_.for_each(
      x.dim(0) * pieces * ranges, cost * (2 + static_cast<double>(width)) / 8,
      [&](int64_t unit, int worker) {
        const int64_t begin = unit % ranges * range, first = unit / ranges % pieces * kChannels;
        const int64_t row = unit / ranges / pieces;
        const int64_t count = std::min(range, tokens - begin),
                      n = std::min(kChannels, channels - first);
        float* weights = scratch.data<float>() + worker * floats;  // [K, kChannels]
        float* past = weights + width * kChannels;  // [K + count, kChannels]: from begin - K on
        transpose_columns(weights, storage, storage.at(weight, first * weight.stride(0)),
                          weight.stride(0), n, width);
        if (begin > 0 || !state_before.defined()) {
          std::fill_n(past, width * kChannels, 0.0f);
        } else {
          transpose_columns(past, storage,
                            storage.at(state_before, row * state_before.stride(0) +
                                                         first * state_before.stride(1)),
                            state_before.stride(1), n, width);
        }
        for (int64_t t = std::max<int64_t>(0, begin - width); t < begin + count; ++t) {
          storage.widen(past + (t - begin + width) * kChannels,
                        storage.at(x, row * x.stride(0) + t * x.stride(1) + first), n);
        }
        if (begin == 0 && state_after.defined()) {
          if (storage.wide()) {
            keep_state<uint32_t>(state_after, state_before, x, row, first, n);
          } else {
            keep_state<uint16_t>(state_after, state_before, x, row, first, n);
          }
        }
        float start[kChannels] = {}, sum[kChannels];
        if (bias.defined()) storage.widen(start, storage.at(bias, first), n);
        for (int64_t t = 0; t < count; ++t) {
          std::copy_n(start, n, sum);
          for (int64_t k = 0; k < width; ++k) {
            simd_->multiply_add(sum, weights + k * kChannels, past + (t + 1 + k) * kChannels, n);
          }
          storage.rows().round(sum, sum, n);
          if (function) {
            simd_->floats().apply(formula_of(*function), sum, sum, nullptr, n);
          }
          storage.write(storage.at(static_cast<char*>(out.raw()),
                                   row * out.stride(0) + (begin + t) * out.stride(1) + first),
                        sum, n);
        }
      });
}

}  // namespace plumb::cpu
