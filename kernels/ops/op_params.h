// The operands of ops.h that are no tensors: functions, norms, masks, scans.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "kernels/core/tensor.h"
#include "kernels/ops/layouts.h"

namespace plumb {

enum class Activation { silu, gelu, gelu_tanh, tanh };
std::optional<Activation> activation_from_name(std::string_view hf_name);  // "gelu_pytorch_tanh"
std::string_view name_of(Activation function);

enum class WeightRounding { before, after };  // LLaMA rounds x before the weight, Gemma after
struct RmsNormParams {
  double eps = 0;
  double weight_offset = 0;  // 1 where the weight is stored zero-centred (Gemma)
  WeightRounding rounding = WeightRounding::before;
};

// Axes that are reduced, from the first one on.
struct Axes {
  uint32_t set = 0;  // a bit each

  constexpr Axes() = default;
  constexpr Axes(std::initializer_list<int> axes) {
    for (const int axis : axes) set |= 1u << axis;
  }
  constexpr bool has(int axis) const { return set >> axis & 1; }
};

// A whole number for each axis, from the first one on.
struct PerAxis {
  std::array<int64_t, kMaxRank> at{};

  int64_t operator[](int axis) const { return at[static_cast<size_t>(axis)]; }
  int64_t& operator[](int axis) { return at[static_cast<size_t>(axis)]; }
};

// The numbers of a seed, from this one on.
struct RandomStream {
  int64_t seed = 0, offset = 0;
};

enum class ScaleOperation { multiply, divide };
enum class RotaryStyle { half, interleaved };

// How many tokens of a sequence are stored: as the host knows it, and in the device's memory (i64
// [1]), where launches that are recorded and replayed (Device::capture) find it.
struct Position {
  int64_t now = 0;
  Tensor stored = {};
};

// What a query row without an allowed key gives: HF eager the mean over all S values, HF sdpa zero.
enum class FullyMasked { uniform, zero, excluded };

// Which keys a query may see: slot q = query_offset + t may see slot k = key_offset + s when k <= q
// (if causal), q - k < window (if any) and key_valid[b, s] (if given). An explicit mask replaces
// all of that.
struct AttentionMask {
  bool causal = false;
  std::optional<int64_t> window;
  int64_t query_offset = 0;
  int64_t key_offset = 0;
  FullyMasked fully_masked = FullyMasked::uniform;
  Tensor key_valid;      // bool [B, S], or undefined
  Tensor explicit_mask;  // [B|1, H|1, T, S], bool (true = allowed) or additive, or undefined
  // k and v are slots that store_tokens() has filled (with this window) up to the one query's own
  // token, the one behind `position`; it sees them all, or the last `window`, where key_valid, of
  // slots without a window only, allows it. Nothing else of the mask may be given.
  std::optional<Position> position = {};
};

struct SdpaParams {
  double scale = 1;
  std::optional<double> softcap;
};

// Operands of a Mamba2 scan (Dao and Gu 2024). N state, P head_dim, G groups; G divides H and head
// h uses group h / (H / G). A head decays with A = -exp(a_log).
struct SsdInputs {
  Tensor x;                  // [B, T, H, P]
  Tensor dt;                 // [B, T, H], before bias and softplus
  Tensor b, c;               // [B, T, G, N]
  Tensor a_log, d, dt_bias;  // [H]
  Tensor state;              // [B, H, P, N], float32 (float64 where x is), or undefined: zeros
};
// Where the scan rounds: transformers computes sequences in float32, single tokens in x's dtype.
enum class SsdForm { chunk, step };
struct SsdParams {
  SsdForm form = SsdForm::chunk;
  int64_t chunk_size = 256;              // of the recorded computation; a device may choose its own
  std::optional<double> dt_min, dt_max;  // chunk form only
};

// Of out = f(alpha a b + beta c + bias).
struct GemmParams {
  double alpha = 1, beta = 0;
  bool transpose_a = false, transpose_b = false;  // as they are stored
  std::optional<Activation> function = {};
};

struct GroupNormParams {
  int64_t groups = 1;  // divides the channels; those of a group share mean and variance
  double eps = 0;
};

// Of the axes H and W; one-dimensional ops have the second of each alone.
using OfAxes = std::array<int64_t, 2>;
struct ConvParams {
  OfAxes stride{1, 1}, padding{}, dilation{1, 1};
  OfAxes output_padding{};  // of transposed ones
  int64_t groups = 1;
};
struct PoolParams {
  OfAxes kernel{1, 1}, stride{1, 1}, padding{};
  bool counts_padding = true;  // a mean's divisor: count_include_pad
};

// Of a quantised weight: kernels/ops/layouts.h.
struct QuantisedParams {
  QuantLayout layout = QuantLayout::int8;
  OfAxes group{};  // rows and columns that share a scale; 0: as the shape of the scales says
};
// How a scale comes of the values that share it.
enum class ScaleRule : uint8_t { symmetric, asymmetric, shared_exponent };
struct QuantizeParams {
  ScaleRule rule = ScaleRule::symmetric;
  OfAxes group{};        // rows and columns that share a scale; 0: all
  double divisor = 127;  // of the largest magnitude, or, asymmetric, of the range
};

// Of logits and their cross entropy.
struct LogitLossParams {
  int64_t ignored = -100;  // the label that is left out
  double scale = 1;        // of the logits, before their softcap
  std::optional<double> softcap = {};
  int64_t chunk =
      0;  // logits in memory at a time, in whole rows or columns; 0: the device's choice
};

struct GatedRmsNormParams {
  double eps = 0;
  int64_t group_size = 0;  // channels that share a mean; divides C
};

}  // namespace plumb
