// Blocks and tiles of a wave.
#pragma once

#include "kernels/emu/cuda/cuda_runtime.h"

namespace cooperative_groups {

using Site = plumb::emulator::Site;

struct thread_block {
  void sync(Site site = Site::current()) const { __syncthreads(site); }
  unsigned thread_rank() const { return plumb::emulator::current->linear; }
  unsigned size() const { return blockDim.x * blockDim.y * blockDim.z; }
  dim3 group_index() const { return blockIdx; }
  dim3 thread_index() const { return threadIdx; }
};
inline thread_block this_thread_block() { return {}; }

template <unsigned Size>
struct thread_block_tile {
  void sync(Site site = Site::current()) const { __syncwarp(~0u, site); }
  unsigned thread_rank() const { return plumb::emulator::current->linear % Size; }
  static constexpr unsigned size() { return Size; }
  template <class T>
  T shfl(T v, int lane, Site site = Site::current()) const {
    return __shfl_sync(~0u, v, lane, Size, site);
  }
  template <class T>
  T shfl_down(T v, unsigned n, Site site = Site::current()) const {
    return __shfl_down_sync(~0u, v, n, Size, site);
  }
  template <class T>
  T shfl_up(T v, unsigned n, Site site = Site::current()) const {
    return __shfl_up_sync(~0u, v, n, Size, site);
  }
  template <class T>
  T shfl_xor(T v, int mask, Site site = Site::current()) const {
    return __shfl_xor_sync(~0u, v, mask, Size, site);
  }
};
template <unsigned Size>
thread_block_tile<Size> tiled_partition(const thread_block&) {
  return {};
}

}  // namespace cooperative_groups
