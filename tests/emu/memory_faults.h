// Planted faults of addresses and wave width. Good: the repaired twin. The lines that a report may
// name are marked.
#pragma once

#include <cstring>

#include "tests/emu/bench.h"

namespace plumb::PLUMB_GPU_VENDOR {

template <bool Good>
__global__ void read_next_shared(float* out, const float* in) {
  float* s = dynamic_shared<float>();
  s[thread()] = in[thread()];
  block_barrier();
  out[thread()] = s[Good ? (thread() + 1) % 64 : thread() + 1];  // fault
}
template <bool Good>
bool shared_read_over(int wave, uint64_t seed) {
  Bench b(wave, seed);
  launch<read_next_shared<Good>>("read_next_shared", {1}, {64}, 64 * sizeof(float), b.stream(),
                                 b.out(), b.in());
  return b.gives(64, [](int i) { return (i + 1) % 64 + 1; });
}

template <bool Good>
__global__ void write_next_shared(float* out, const float* in) {
  float* s = block_shared<float[64]>();
  s[thread() + (Good ? 0 : 1)] = in[thread()];  // fault
  block_barrier();
  out[thread()] = Good || thread() > 0 ? s[thread()] : 0.0f;
}
template <bool Good>
bool shared_write_over(int wave, uint64_t seed) {
  Bench b(wave, seed);
  launch<write_next_shared<Good>>("write_next_shared", {1}, {64}, 0, b.stream(), b.out(), b.in());
  return b.gives(64, [](int i) { return i + 1; });
}

template <bool Good>
__global__ void read_next(float* out, const float* in) {
  out[thread()] = in[thread() + (Good ? 0 : 1)];  // fault
}
template <bool Good>
bool device_read_over(int wave, uint64_t seed) {
  Bench b(wave, seed);
  launch<read_next<Good>>("read_next", {1}, {256}, 0, b.stream(), b.out(), b.in());
  return b.gives(256, [](int i) { return i + 1; });
}

template <bool Good>
__global__ void write_next(BFloat16* out, const float* in) {
  out[thread() + (Good ? 0 : 1)] = from_float<BFloat16>(in[thread()]);  // fault
}
template <bool Good>
bool device_write_over(int wave, uint64_t seed) {
  Bench b(wave, seed);
  auto* out = b.fresh<BFloat16>(63);  // an end off any alignment
  launch<write_next<Good>>("write_next", {1}, {63}, 0, b.stream(), out, b.in());
  return true;
}

#ifdef PLUMB_EMU_CHECK
extern "C" void* __tsan_memmove(void* to, const void* from, size_t bytes);
extern "C" void* __tsan_memset(void* to, int value, size_t bytes);
#endif
// What Clang makes of memmove() and memset(), here by every compiler.
template <bool Good>
__global__ void move_from_next(float* out, const float* in) {
  const size_t bytes = 256 * sizeof(float);
#ifdef PLUMB_EMU_CHECK
  if (thread() == 0) __tsan_memmove(out, in + (Good ? 0 : 1), bytes);  // fault
#else
  if (thread() == 0) std::memmove(out, in + (Good ? 0 : 1), bytes);
#endif
}
template <bool Good>
bool device_move_over(int wave, uint64_t seed) {
  Bench b(wave, seed);
  launch<move_from_next<Good>>("move_from_next", {1}, {64}, 0, b.stream(), b.out(), b.in());
  return b.gives(256, [](int i) { return i + 1; });
}

template <bool Good>
__global__ void fill_next(float* out) {
  const size_t bytes = 256 * sizeof(float);
#ifdef PLUMB_EMU_CHECK
  if (thread() == 0) __tsan_memset(out + (Good ? 0 : 1), 0, bytes);  // fault
#else
  if (thread() == 0) std::memset(out + (Good ? 0 : 1), 0, bytes);
#endif
}
template <bool Good>
bool device_fill_over(int wave, uint64_t seed) {
  Bench b(wave, seed);
  launch<fill_next<Good>>("fill_next", {1}, {64}, 0, b.stream(), b.out());
  return b.gives(256, [](int) { return 0; });
}

template <bool Good>
bool use_after_free(int wave, uint64_t seed) {
  Bench b(wave, seed);
  if (!Good) b.free_now(b.in());
  launch<read_next<true>>("read_freed", {1}, {256}, 0, b.stream(), b.out(), b.in());
  return b.gives(256, [](int i) { return i + 1; });
}

// The uninitialised value does not reach the result.
template <bool Good>
__global__ void compare_unwritten(float* out, const float* in, int never) {
  auto& s = block_shared<int[65]>();
  s[thread()] = static_cast<int>(in[thread()]);
  if (Good && thread() == 0) s[64] = 0;
  block_barrier();
  out[thread()] = static_cast<float>(s[thread()] + (s[64] == never ? 1 : 0));  // fault
}
template <bool Good>
bool uninitialised_shared(int wave, uint64_t seed) {
  Bench b(wave, seed);
  launch<compare_unwritten<Good>>("compare_unwritten", {1}, {64}, 0, b.stream(), b.out(), b.in(),
                                  123);
  return b.gives(64, [](int i) { return i + 1; });
}
__global__ inline void compare(float* out, const float* in, const float* scratch) {
  out[thread()] = in[thread()] + (scratch[thread()] == in[thread()] + 0.5f ? 1.0f : 0.0f);  // fault
}
template <bool Good>
bool uninitialised_device(int wave, uint64_t seed) {
  Bench b(wave, seed);
  float* scratch = Good ? b.array(std::vector<float>(64)) : b.fresh<float>(64);
  launch<compare>("compare", {1}, {64}, 0, b.stream(), b.out(), b.in(), scratch);
  return b.gives(64, [](int i) { return i + 1; });
}

template <bool Good>
__global__ void load_four(float* out, const float* in) {
  if (thread() < 8) out[thread()] = load_vector<4>(in + (Good ? 4 : 1))[thread() % 4];  // fault
}
template <bool Good>
bool misaligned_vector(int wave, uint64_t seed) {
  Bench b(wave, seed);
  launch<load_four<Good>>("load_four", {1}, {64}, 0, b.stream(), b.out(), b.in());
  return b.gives(8, [](int i) { return i % 4 + 5; });
}

template <bool Good>
__global__ void index_local(float* out, const float* in, int at) {
  float a[8];
  for (int i = 0; i < 8; ++i) a[i] = in[thread()] + static_cast<float>(i);
  out[thread()] = a[at - (Good ? 1 : 0)];  // fault
}
template <bool Good>
bool local_array_over(int wave, uint64_t seed) {
  Bench b(wave, seed);
  launch<index_local<Good>>("index_local", {1}, {64}, 0, b.stream(), b.out(), b.in(), 8);
  return b.gives(64, [](int i) { return i + 8; });
}

template <bool Good, int Wave>
__global__ void read_last_lane(float* out, const float* in) {
  out[thread()] = shuffle<Wave>(in[thread()], Good ? 0 : Wave - 1);  // fault
}
template <bool Good>
bool absent_lane(int wave, uint64_t seed) {
  Bench b(wave, seed);
  with_wave(b.stream(), [&]<int Wave>() {
    launch<read_last_lane<Good, Wave>>("read_last_lane", {1}, {48}, 0, b.stream(), b.out(), b.in());
  });
  return b.gives(48, [&](int i) { return i / wave * wave + 1; });
}

template <bool Good, int Wave>
__global__ void sum_wave(float* out, const float* in) {
  constexpr int kWidth = Good ? Wave : 32;
  out[thread()] = warp_sum<kWidth>(in[thread()]);  // fault
}
// Legal code: half of a wave of 64 is summed.
template <bool Good, int Wave>
__global__ void sum_32_lanes(float* out, const float* in) {
  float v = in[thread()];
  for (int offset = (Good ? Wave : 32) / 2; offset > 0; offset /= 2)
    v += shuffle_xor<Wave>(v, offset);
  out[thread()] = v;
}
inline bool gives_wave_sums(const Bench& b) {
  return b.gives(64, [&](int i) {
    float sum = 0;
    for (int j = i / b.wave() * b.wave(); j < (i / b.wave() + 1) * b.wave(); ++j) {
      sum += static_cast<float>(j + 1);
    }
    return sum;
  });
}
template <bool Good>
bool width_32_as_argument(int wave, uint64_t seed) {
  Bench b(wave, seed);
  with_wave(b.stream(), [&]<int Wave>() {
    launch<sum_wave<Good, Wave>>("sum_wave", {1}, {64}, 0, b.stream(), b.out(), b.in());
  });
  return gives_wave_sums(b);
}
template <bool Good>
bool width_32_in_a_loop(int wave, uint64_t seed) {
  Bench b(wave, seed);
  with_wave(b.stream(), [&]<int Wave>() {
    launch<sum_32_lanes<Good, Wave>>("sum_32_lanes", {1}, {64}, 0, b.stream(), b.out(), b.in());
  });
  return gives_wave_sums(b);
}

}  // namespace plumb::PLUMB_GPU_VENDOR
