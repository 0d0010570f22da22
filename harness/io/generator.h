// Tensors that a recording describes by a rule instead of storing them: inputs and weights of full
// size. python_inspector/format/generator.py writes the same bits.
#pragma once

#include <cstdint>

#include "kernels/core/tensor.h"

namespace plumb::harness {

// Element i (row major) is made of h = splitmix64(seed, i): the sum s of h's four 16-bit quarters
// less its mean 131070 is near normal (sigma 37837); the value is offset + s 2^exponent in float32
// (exact but for the sum), rounded to the tensor's dtype. sigma is 1.155 for exponent -15.
struct Generator {
  int64_t seed = 0;  // not negative
  int exponent = 0;  // -40 to 0
  float offset = 0;  // 0, or 1 for the weights of a norm
};

inline constexpr int64_t kLargestGenerated = int64_t{2} << 30;  // bytes of one tensor

// Output i of the SplitMix64 generator (Steele, Lea, Flood: Fast splittable pseudorandom number
// generators, 2014) that starts at `seed`.
inline uint64_t splitmix64(uint64_t seed, uint64_t i) {
  uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// A contiguous host tensor of f32, f16 or bf16; throws UsageError for another dtype.
Tensor generate(const Generator& generator, DType dtype, const Shape& shape);

}  // namespace plumb::harness
