// quantised_linear of one row and words of 4-bit codes, bound by reading these.
//
// A wave makes kOutputs results: a lane reads 32 codes of each, 16 bytes, and what they are
// multiplied by once. A code becomes a float by its bits alone: they are the last of 2^23, from
// which 2^23 and the zero are taken off, exactly. Sums are of x (code - zero) within a lane's part
// of a group, which is then multiplied by its scale.
#include "kernels/gpu/quantised_row.h"
#include "kernels/gpu/rows.h"
#include "kernels/ops/decode.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256, kOutputs = 4;
constexpr int kWords = 4, kCodes = 8 * kWords;  // of a lane's vector

template <class T>
struct WordOperands {
  PackedWeight weight;
  const T* x;
  T* out;
  const T* bias;  // null: none
  Divisor group_columns;
};

// 2^23, and the last bits of it.
__device__ inline float above_2_23(uint32_t bits) {
  return __builtin_bit_cast(float, 0x4b000000u | bits);
}

// What is taken off codes of group `group` of row n, with 2^23.
__device__ inline float offset_of(const PackedWeight& w, int64_t n, int64_t group) {
  if (w.layout.zeros == ZeroType::none) {
    return above_2_23(static_cast<uint32_t>(w.layout.offset));
  }
  return above_2_23(static_cast<uint32_t>(decode::packed_code<uint32_t>(
      w.zeros, w.zeros_row, w.layout.places, w.layout.zeros_axis, n, group)));
}

template <class T, int Wave>
__global__ void __launch_bounds__(kThreads) words_times_row(WordOperands<T> p) {
  wait_for_previous_kernel();
  const PackedWeight& w = p.weight;
  const int lane = static_cast<int>(thread_index().x) % Wave;
  const int64_t wave = int64_t{block_index().x} * (kThreads / Wave) + thread_index().x / Wave;
  const int64_t first = wave * kOutputs;
  if (first >= w.rows) return;
  const uint32_t* rows[kOutputs];
  int64_t of_row[kOutputs];
#pragma unroll
  for (int r = 0; r < kOutputs; ++r) {
    of_row[r] = first + r < w.rows ? first + r : w.rows - 1;
    rows[r] = static_cast<const uint32_t*>(w.codes) + of_row[r] * w.codes_row;
  }
  float sum[kOutputs] = {};
  for (int64_t k = int64_t{lane} * kCodes; k < w.columns; k += Wave * kCodes) {
    Vector<uint32_t, kWords> words[kOutputs];
#pragma unroll
    for (int r = 0; r < kOutputs; ++r) words[r] = load_vector<kWords>(rows[r] + k / 8);
    float x[kCodes];
#pragma unroll
    for (int i = 0; i < kCodes; i += kVector<T>) {
      const auto vector = load_vector<kVector<T>>(p.x + k + i);
#pragma unroll
      for (int j = 0; j < kVector<T>; ++j) x[i + j] = to_float(vector[j]);
    }
    const int64_t group = divide(k, p.group_columns).quotient;
#pragma unroll
    for (int r = 0; r < kOutputs; ++r) {
      const float offset = offset_of(w, of_row[r], group);
      const float scale =
          decode::number_at<float>(w.scales_dtype, w.scales, of_row[r] * w.scales_row + group);
      float part = 0;
#pragma unroll
      for (int i = 0; i < kCodes; ++i) {
        const float code = above_2_23(words[r][i / 8] >> 4 * (i % 8) & 15u) - offset;
        part = fused_multiply_add(x[i], code, part);
      }
      sum[r] = fused_multiply_add(part, scale, sum[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kOutputs; ++r) {
    const float total = warp_sum<Wave>(sum[r]);
    if (lane != 0 || first + r >= w.rows) continue;
    const float bias = p.bias ? to_float(p.bias[first + r]) : 0.0f;
    p.out[first + r] = from_float<T>(total + bias);
  }
}

}  // namespace

bool reads_words(const QuantisedLinearCall& call) {
  const QuantisedWeight& w = call.weight;
  const LayoutRow& layout = w.layout;
  const bool words = layout.codes == CodeType::words && layout.packed_axis == 1 &&
                     !layout.by_input && layout.places == kLowFirst &&
                     layout.grid == CodeGrid::number && layout.zeros != ZeroType::plain;
  const bool one_row = call.out.numel() == call.out.dim(-1) && !call.x_scales.defined();
  return words && one_row && !w.group_index.defined() && w.group_rows == 1 &&
         w.columns % kCodes == 0 && w.group_columns % kCodes == 0 && w.columns > 0 &&
         w.scales.dtype() != DType::f64 && rows_are_vectors(w.codes) && rows_are_vectors(call.x);
}

void multiply_words(const QuantisedLinearCall& call, Stream stream) {
  const char* op = call.row.name;
  with_storage(op, call.out.dtype(), [&]<class T>(T) {
    const WordOperands<T> p{packed(call.weight), call.x.data<T>(), call.out.data<T>(),
                            call.bias.defined() ? call.bias.data<T>() : nullptr,
                            Divisor(call.weight.group_columns)};
    with_wave(stream, [&]<int Wave>() {
      constexpr int64_t kOfBlock = int64_t{kThreads / Wave} * kOutputs;
      launch_overlapped<words_times_row<T, Wave>>(op, {grid_for(p.weight.rows, kOfBlock)},
                                                  {kThreads}, 0, stream, p);
    });
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
