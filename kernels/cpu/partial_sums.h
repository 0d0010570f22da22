// Sums for simd_kernels.cpp only (see there): kLanes partial sums, then a fixed tree.
#pragma once

#include "kernels/cpu/vec.h"

namespace plumb::cpu {
namespace {

constexpr int kParts = kLanes / kWidth;

struct Partial {
  F part[kParts];
};

// Lane j and lane j + half are combined, for half 16, 8, 4, 2, 1.
template <class Combine>
inline float fold(F v, Combine combine) {
  typedef float Quarter __attribute__((vector_size(16)));
  Quarter part[kWidth / 4];
  __builtin_memcpy(part, &v, sizeof v);
#pragma GCC unroll 2
  for (int half = kWidth / 8; half > 0; half /= 2) {
#pragma GCC unroll 2
    for (int j = 0; j < half; ++j) part[j] = combine(part[j], part[j + half]);
  }
  Quarter lanes = part[0];
  lanes = combine(lanes, Quarter{lanes[2], lanes[3], lanes[2], lanes[3]});
  lanes = combine(lanes, Quarter{lanes[1], lanes[1], lanes[1], lanes[1]});
  return lanes[0];
}
inline float total(Partial& partial) {
  F* part = partial.part;
  for (int half = kParts / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) part[j] += part[j + half];
  }
  return fold(part[0], [](auto a, auto b) { return a + b; });
}

}  // namespace
}  // namespace plumb::cpu
