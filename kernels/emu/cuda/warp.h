// Shuffles and votes. All lanes of a wave that have not ended take part, whatever the mask says: a
// shuffle of half a wave is a divergence here.
#pragma once

#include "kernels/emu/cuda/launch.h"

namespace plumb::PLUMB_GPU_VENDOR::plain {

// The value of lane `from(own lane in its segment, width)`, a lane of that segment; another number:
// the thread's own.
template <class T, class From>
T shuffled(T v, int width, emulator::WaveOperation operation, Site site, From from) {
  const uint64_t* slots = emulator::exchange(detail::to_slot(v), 0, operation, site);
  const int lane = static_cast<int>(emulator::current->lane), own = lane % width;
  const int other = from(own);
  const int source = lane - own + (other >= 0 && other < width ? other : own);
  emulator::require_lane(static_cast<unsigned>(source), site);
  return detail::from_slot<T>(slots[source]);
}

inline uint64_t votes(bool v, Site site) {
  const uint64_t* slots = emulator::exchange(v, 0, emulator::WaveOperation::ballot, site);
  uint64_t out = 0;
  for (unsigned i = 0; i < emulator::current->lanes; ++i) out |= (slots[i] & 1) << i;
  return out;
}

inline uint64_t all_lanes() { return ~uint64_t{0} >> (64 - emulator::current->lanes); }

}  // namespace plumb::PLUMB_GPU_VENDOR::plain

template <class T>
T __shfl_sync(uint64_t, T v, int lane, int width = warpSize,
              plumb::emulator::Site site = plumb::emulator::Site::current()) {
  return plumb::PLUMB_GPU_VENDOR::plain::shuffled(
      v, width, plumb::emulator::WaveOperation::shuffle, site,
      [=](int) { return (lane % width + width) % width; });
}
template <class T>
T __shfl_xor_sync(uint64_t, T v, int mask, int width = warpSize,
                  plumb::emulator::Site site = plumb::emulator::Site::current()) {
  return plumb::PLUMB_GPU_VENDOR::plain::shuffled(v, width,
                                                  plumb::emulator::WaveOperation::shuffle_xor, site,
                                                  [=](int own) { return own ^ mask; });
}
template <class T>
T __shfl_down_sync(uint64_t, T v, unsigned n, int width = warpSize,
                   plumb::emulator::Site site = plumb::emulator::Site::current()) {
  return plumb::PLUMB_GPU_VENDOR::plain::shuffled(
      v, width, plumb::emulator::WaveOperation::shuffle_down, site,
      [=](int own) { return own + static_cast<int>(n); });
}
template <class T>
T __shfl_up_sync(uint64_t, T v, unsigned n, int width = warpSize,
                 plumb::emulator::Site site = plumb::emulator::Site::current()) {
  return plumb::PLUMB_GPU_VENDOR::plain::shuffled(
      v, width, plumb::emulator::WaveOperation::shuffle, site,
      [=](int own) { return own - static_cast<int>(n); });
}

inline unsigned __ballot_sync(uint64_t, int v,
                              plumb::emulator::Site site = plumb::emulator::Site::current()) {
  return static_cast<unsigned>(plumb::PLUMB_GPU_VENDOR::plain::votes(v != 0, site));
}
inline int __any_sync(uint64_t, int v,
                      plumb::emulator::Site site = plumb::emulator::Site::current()) {
  return plumb::PLUMB_GPU_VENDOR::plain::votes(v != 0, site) != 0;
}
inline int __all_sync(uint64_t, int v,
                      plumb::emulator::Site site = plumb::emulator::Site::current()) {
  namespace plain = plumb::PLUMB_GPU_VENDOR::plain;
  return plain::votes(v != 0, site) == plain::all_lanes();
}
inline unsigned __activemask() {
  return static_cast<unsigned>(plumb::PLUMB_GPU_VENDOR::plain::all_lanes());
}
template <class T>
T __reduce_add_sync(uint64_t mask, T v,
                    plumb::emulator::Site site = plumb::emulator::Site::current()) {
  T sum = 0;
  for (int i = 0; i < static_cast<int>(plumb::emulator::current->lanes); ++i)
    sum += __shfl_sync(mask, v, i, warpSize, site);
  return sum;
}
