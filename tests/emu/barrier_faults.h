// Planted faults of order: barriers, wave operations, races. Good: the repaired twin. The lines
// that a report may name are marked.
#pragma once

#include "tests/emu/bench.h"

namespace plumb::PLUMB_GPU_VENDOR {

template <bool Good, int Step>
__global__ void neighbour(float* out, const float* in) {
  auto& s = block_shared<float[256]>();
  s[thread()] = in[thread()];  // fault
  if (Good) block_barrier();
  out[thread()] = s[(thread() + Step + 256) % 256];  // fault
}
template <bool Good, int Step>
bool missing_block_barrier(int wave, uint64_t seed) {
  Bench b(wave, seed);
  launch<neighbour<Good, Step>>("neighbour", {1}, {256}, 0, b.stream(), b.out(), b.in());
  return b.gives(256, [](int i) { return (i + Step + 256) % 256 + 1; });
}

template <bool Good>
__global__ void tile_loop(float* out, const float* in, int tiles) {
  auto& s = block_shared<float[64]>();
  float sum = 0;
  for (int k = 0; k < tiles; ++k) {
    s[thread()] = in[k * 64 + thread()];  // fault
    block_barrier();
    for (int j = 0; j < 64; ++j) sum += s[j] * static_cast<float>(j + 1);  // fault
    if (Good) block_barrier();
  }
  out[thread()] = sum;
}
template <bool Good>
bool missing_barrier_at_end_of_tile(int wave, uint64_t seed) {
  Bench b(wave, seed);
  launch<tile_loop<Good>>("tile_loop", {1}, {64}, 0, b.stream(), b.out(), b.in(), 4);
  float sum = 0;
  for (int i = 0; i < 256; ++i) sum += static_cast<float>((i + 1) * (i % 64 + 1));
  return b.gives(64, [&](int) { return sum; });
}

template <bool Good>
__global__ void overlapped(float* out, const float* in) {
  if (!Good && thread() == 0) return;
  wait_for_previous_kernel();
  out[thread()] = in[thread()];
}
template <bool Good>
bool missing_wait_for_previous_kernel(int wave, uint64_t seed) {
  Bench b(wave, seed);
  launch_overlapped<overlapped<Good>>("overlapped", {1}, {64}, 0, b.stream(), b.out(), b.in());
  return b.gives(64, [](int i) { return i + 1; });
}

__global__ void one_more(float* out, const float* in) {
  wait_for_previous_kernel();
  out[thread()] = in[thread()] + 1;  // fault
}
template <bool Good>
__global__ void read_early(float* out, const float* sum, const float* in) {
  const float early = in[thread()];        // of the host: may be read
  float added = Good ? 0 : sum[thread()];  // fault
  wait_for_previous_kernel();
  if (Good) added = sum[thread()];
  out[thread()] = early + added;
}
template <bool Good>
bool read_ahead_of_the_kernel_before(int wave, uint64_t seed) {
  Bench b(wave, seed);
  float* sum = b.array(std::vector<float>(64, 0.0f));
  launch_overlapped<one_more>("one_more", {1}, {64}, 0, b.stream(), sum, b.in());
  launch_overlapped<read_early<true>>("read_early", {1}, {64}, 0, b.stream(), b.out(), sum, b.in());
  launch_overlapped<read_early<Good>>("read_early", {1}, {64}, 0, b.stream(), b.out(), sum, b.in());
  if (!b.gives(64, [](int i) { return 2 * i + 3; })) return false;
  // The host has waited.
  launch_overlapped<read_early<false>>("read_early", {1}, {64}, 0, b.stream(), b.out(), sum,
                                       b.in());
  return b.gives(64, [](int i) { return 2 * i + 3; });
}

// Waiting for one queue says nothing about another.
template <bool Good>
bool read_ahead_behind_another_queue(int wave, uint64_t seed) {
  Bench b(wave, seed);
  float* sum = b.array(std::vector<float>(64, 0.0f));
  launch_overlapped<one_more>("one_more", {1}, {64}, 0, b.stream(), sum, b.in());
  const Queue other;
  wait_for(Good ? b.stream() : other.stream);
  launch_overlapped<read_early<false>>("read_early", {1}, {64}, 0, b.stream(), b.out(), sum,
                                       b.in());
  return b.gives(64, [](int i) { return 2 * i + 3; });
}

template <bool Good>
bool read_ahead_of_another_queue(int wave, uint64_t seed) {
  Bench b(wave, seed);
  float* sum = b.array(std::vector<float>(64, 0.0f));
  float* more = b.array(std::vector<float>(64, 0.0f));
  const Queue other;
  launch_overlapped<one_more>("one_more", {1}, {64}, 0, b.stream(), more, b.in());
  launch_overlapped<one_more>("one_more", {1}, {64}, 0, other.stream, sum, b.in());
  if (Good) wait_for(other.stream);
  launch_overlapped<read_early<false>>("read_early", {1}, {64}, 0, b.stream(), b.out(), sum,
                                       b.in());
  return b.gives(64, [](int i) { return 2 * i + 3; });
}

__global__ void count_up(uint16_t* out) {
  wait_for_previous_kernel();
  out[thread()] = static_cast<uint16_t>(256 * thread());  // fault
}
template <bool Good>
__global__ void read_high_byte_early(float* out, const unsigned char* counts) {
  float high = Good ? 0 : counts[2 * thread() + 1];  // fault
  wait_for_previous_kernel();
  if (Good) high = counts[2 * thread() + 1];
  out[thread()] = high;
}
template <bool Good>
bool read_of_a_byte_ahead(int wave, uint64_t seed) {
  Bench b(wave, seed);
  auto* counts = b.fresh<uint16_t>(64);
  launch_overlapped<count_up>("count_up", {1}, {64}, 0, b.stream(), counts);
  launch_overlapped<read_high_byte_early<Good>>("read_high_byte_early", {1}, {64}, 0, b.stream(),
                                                b.out(), reinterpret_cast<unsigned char*>(counts));
  return b.gives(64, [](int i) { return i; });
}

template <bool Good>
__global__ void write_early(float* out, const float* in) {
  if (!Good) out[thread()] = in[thread()];  // fault
  wait_for_previous_kernel();
  if (Good) out[thread()] = in[thread()];
}
template <bool Good>
bool write_ahead_of_the_kernel_before(int wave, uint64_t seed) {
  Bench b(wave, seed);
  launch_overlapped<write_early<Good>>("write_early", {1}, {64}, 0, b.stream(), b.out(), b.in());
  return b.gives(64, [](int i) { return i + 1; });
}

template <bool Good>
__global__ void lock_step(float* out, const float* in) {
  auto& s = block_shared<float[64]>();
  s[thread()] = in[thread()];  // fault
  if (Good) warp_barrier();
  out[thread()] = s[thread() ^ 1];  // fault
}
template <bool Good>
bool missing_wave_barrier(int wave, uint64_t seed) {
  Bench b(wave, seed);
  launch<lock_step<Good>>("lock_step", {1}, {64}, 0, b.stream(), b.out(), b.in());
  return b.gives(64, [](int i) { return (i ^ 1) + 1; });
}

template <bool Good, int Wave>
__global__ void shuffle_in_branch(float* out, const float* in) {
  const float v = in[thread()];
  float y = 0;
  if (Good) {
    const float x = shuffle_xor<Wave>(v, 1);
    if (thread() % 4 < 2) y = x;
  } else if (thread() % 4 < 2) {
    y = shuffle_xor<Wave>(v, 1);  // fault
  }
  out[thread()] = y;
}
template <bool Good>
bool divergent_shuffle(int wave, uint64_t seed) {
  Bench b(wave, seed);
  with_wave(b.stream(), [&]<int Wave>() {
    launch<shuffle_in_branch<Good, Wave>>("shuffle_in_branch", {1}, {64}, 0, b.stream(), b.out(),
                                          b.in());
  });
  return b.gives(64, [](int i) { return i % 4 < 2 ? (i ^ 1) + 1 : 0; });
}

template <bool Good>
__global__ void leave_early(float* out, const float* in, int n) {
  auto& s = block_shared<float[64]>();
  if (!Good && thread() >= n) return;
  if (thread() < n) s[thread()] = in[thread()];
  block_barrier();  // fault
  if (thread() < n) out[thread()] = s[(thread() + 1) % n];
}
template <bool Good>
bool exit_before_barrier(int wave, uint64_t seed) {
  Bench b(wave, seed);
  launch<leave_early<Good>>("leave_early", {1}, {64}, 0, b.stream(), b.out(), b.in(), 50);
  return b.gives(50, [](int i) { return (i + 1) % 50 + 1; });
}

template <bool Good>
__global__ void barrier_per_branch(float* out, const float* in) {
  auto& s = block_shared<float[64]>();
  s[thread()] = in[thread()];
  if (Good) {
    block_barrier();
  } else if (thread() < 32) {
    block_barrier();  // fault
  } else {
    block_barrier();  // fault
  }
  out[thread()] = s[63 - thread()];
}
template <bool Good>
bool two_barriers_in_a_branch(int wave, uint64_t seed) {
  Bench b(wave, seed);
  launch<barrier_per_branch<Good>>("barrier_per_branch", {1}, {64}, 0, b.stream(), b.out(), b.in());
  return b.gives(64, [](int i) { return 64 - i; });
}

// The same value from two threads: the result is right in every order.
template <bool Good>
__global__ void write_twice(float* out, const float* in) {
  if (Good ? thread() == 0 : thread() < 2) out[0] = in[0];  // fault
  if (thread() > 1) out[thread()] = in[thread()];
}
template <bool Good>
bool device_memory_race(int wave, uint64_t seed) {
  Bench b(wave, seed);
  launch<write_twice<Good>>("write_twice", {1}, {64}, 0, b.stream(), b.out(), b.in());
  return b.gives(1, [](int) { return 1; });
}
template <bool Good>
__global__ void share_twice(float* out, const float* in) {
  auto& s = block_shared<float[1]>();
  if (!Good || thread() == 0) s[0] = in[0];  // fault
  block_barrier();
  out[thread()] = s[0] + in[thread()];
}
template <bool Good>
bool shared_memory_race(int wave, uint64_t seed) {
  Bench b(wave, seed);
  launch<share_twice<Good>>("share_twice", {1}, {64}, 0, b.stream(), b.out(), b.in());
  return b.gives(64, [](int i) { return i + 2; });
}

template <bool Good>
__global__ void count_blocks(int* count, float* sum) {
  if (Good) {
    atomic_add(count, 1);
    atomic_add(sum, 0.5f);
  } else {
    *count = *count + 1;  // fault
    *sum = *sum + 0.5f;
  }
}
template <bool Good>
bool race_between_blocks(int wave, uint64_t seed) {
  Bench b(wave, seed);
  int* count = b.array(std::vector<int>(1));
  float* sum = b.array(std::vector<float>(1));
  launch<count_blocks<Good>>("count_blocks", {64}, {1}, 0, b.stream(), count, sum);
  int counted = 0;
  float summed = 0;
  copy_to_host(&counted, count, sizeof counted, b.stream());
  copy_to_host(&summed, sum, sizeof summed, b.stream());
  return counted == 64 && summed == 32.0f;
}

}  // namespace plumb::PLUMB_GPU_VENDOR
