// Ids in ascending order, equal ones in the order of their places, so that a sum over the places of
// one id reads those alone, in their order.
#pragma once

#include "kernels/gpu/gpu_ops.h"

namespace plumb::PLUMB_GPU_VENDOR {

// An id and its place in one number: no two are equal, and any sort of them is stable.
using IdKey = uint64_t;
__host__ __device__ inline IdKey key_of(int64_t id, int64_t place) {
  return static_cast<IdKey>(id) << 32 | static_cast<IdKey>(place);
}
__device__ inline int64_t id_of(IdKey key) { return static_cast<int64_t>(key >> 32); }
__device__ inline int64_t place_of(IdKey key) { return static_cast<int64_t>(key & 0xffffffffu); }

// How many of a sorted run's keys are smaller.
__device__ inline int64_t keys_below(const IdKey* run, int64_t count, IdKey key) {
  int64_t first = 0;
  while (count > 0) {
    const int64_t half = count / 2;
    const bool smaller = run[first + half] < key;
    first += smaller ? half + 1 : 0;
    count = smaller ? count - half - 1 : half;
  }
  return first;
}

// All of `ids`, which are numbered in row-major order, in scratch memory of the arena: sorted. An
// unknown id, one outside [0, below), is noted, and goes behind all others, as `below`.
const IdKey* sorted_ids(GpuOps& ops, OpId op, const Tensor& ids, int64_t below, IdError* error);

}  // namespace plumb::PLUMB_GPU_VENDOR
