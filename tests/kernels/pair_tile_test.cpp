// The micro-kernel of bf16 pairs, on the instruction sets that have one.
#include <algorithm>

#include "kernels/core/dtype.h"
#include "kernels/cpu/isa.h"
#include "tests/kernels/support.h"

namespace plumb::cpu {
namespace {

// Small integers in bf16, two to a word, and what they are.
struct Pairs {
  std::vector<uint32_t> words;
  std::vector<float> even, odd;
  Pairs(size_t n, int modulus) : words(n), even(n), odd(n) {
    for (size_t i = 0; i < n; ++i) {
      even[i] = static_cast<float>(static_cast<int>(i) % modulus - 2);
      odd[i] = static_cast<float>(static_cast<int>(3 * i) % modulus - 1);
      words[i] = f32_to_bf16(even[i]) | static_cast<uint32_t>(f32_to_bf16(odd[i])) << 16;
    }
  }
};

TEST_CASE("pair tile: sums, accumulated sums, and rounded rows of any number") {
  const std::vector<const Simd*> usable = usable_simds();
  const Simd& simd = *usable.back();
  if (!simd.pair_tile) return;  // this processor multiplies no pairs of bf16
  const int64_t pairs = GENERATE(0, 1, 7, 64), width = simd.tile_columns, stride = width + 5;
  const Pairs a(static_cast<size_t>(pairs * kPairRows), 7);
  const Pairs b(static_cast<size_t>(pairs * width), 5);
  const auto expected = [&](int64_t i, int64_t j) {
    float sum = 0;
    for (int64_t p = 0; p < pairs; ++p) {
      const auto at = static_cast<size_t>(p * kPairRows + i),
                 to = static_cast<size_t>(p * width + j);
      sum += a.even[at] * b.even[to] + a.odd[at] * b.odd[to];
    }
    return sum;
  };
  std::vector<float> sums(static_cast<size_t>(kPairRows * stride), 100.0f);
  PairTile tile{pairs, a.words.data(), b.words.data(), sums.data(), stride, false, nullptr,
                0,     kPairRows,      width};
  for (const float times : {1.0f, 2.0f}) {
    tile.accumulate = times > 1;
    simd.pair_tile(tile);
    for (int64_t i = 0; i < kPairRows; ++i) {
      for (int64_t j = 0; j < stride; ++j) {
        REQUIRE(sums[static_cast<size_t>(i * stride + j)] ==
                (j < width ? times * expected(i, j) : 100));
      }
    }
  }
  const std::vector<float> before = sums;
  tile.rows = GENERATE(1, 5, kPairRows);
  tile.columns = GENERATE_COPY(int64_t{1}, width - 3, width);
  std::vector<uint16_t> out(sums.size(), 0x5555);
  tile.out = out.data();
  tile.out_stride = stride;
  simd.pair_tile(tile);
  REQUIRE(sums == before);
  for (int64_t i = 0; i < kPairRows; ++i) {
    for (int64_t j = 0; j < stride; ++j) {
      const uint16_t code =
          i < tile.rows && j < tile.columns ? f32_to_bf16(3 * expected(i, j)) : 0x5555;
      REQUIRE(out[static_cast<size_t>(i * stride + j)] == code);
    }
  }
}

}  // namespace
}  // namespace plumb::cpu
