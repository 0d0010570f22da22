// The checksum of kernels/core/checksum.h in device memory. Each thread adds up every n-th word,
// each wave writes one sum; the host adds those, and the bytes behind the last whole word.
#include <vector>

#include "kernels/core/checksum.h"
#include "kernels/gpu/gpu_device.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr unsigned kThreads = 256, kMostBlocks = 512;

__device__ inline uint64_t term(uint64_t word, uint64_t position) {
  const uint64_t mixed = (word ^ (position * 0x9e3779b97f4a7c15u)) * 0xbf58476d1ce4e5b9u;
  return mixed ^ (mixed >> 32);
}

template <int Wave>
__global__ void __launch_bounds__(kThreads)
    sum_words(const uint64_t* words, int64_t n, uint64_t* sums) {
  const int64_t step = int64_t{kThreads} * grid_size().x;
  const int64_t first = int64_t{kThreads} * block_index().x + thread_index().x;
  uint64_t sum = 0;
  for (int64_t i = first; i < n; i += step) sum += term(words[i], static_cast<uint64_t>(i));
  for (int other = Wave / 2; other > 0; other /= 2) sum += shuffle_xor<Wave>(sum, other);
  if (thread_index().x % Wave == 0) sums[first / Wave] = sum;
}

}  // namespace

uint64_t GpuDevice::checksum(const Tensor& t) {
  begin("checksum");
  const int64_t words = t.bytes() / 8, rest = t.bytes() % 8;
  uint64_t out = 0;
  if (words > 0) {
    const auto blocks =
        static_cast<unsigned>(std::min<int64_t>(kMostBlocks, (words + kThreads - 1) / kThreads));
    with_wave(stream(), [&]<int Wave>() {
      std::vector<uint64_t> sums(blocks * kThreads / Wave);
      const Tensor on_device =
          allocate(DType::u8, {static_cast<int64_t>(sums.size() * sizeof(uint64_t))});
      launch<sum_words<Wave>>("checksum", {blocks}, {kThreads}, 0, stream(),
                              static_cast<const uint64_t*>(t.raw()), words,
                              on_device.data<uint64_t>());
      copy_to_host(sums.data(), on_device.raw(), static_cast<size_t>(on_device.bytes()), stream());
      for (const uint64_t sum : sums) out += sum;
    });
  }
  if (rest == 0) return out;
  uint64_t last = 0;
  copy_to_host(&last, t.data<char>() + 8 * words, static_cast<size_t>(rest), stream());
  return out + checksum_term(last, static_cast<uint64_t>(words));
}

}  // namespace plumb::PLUMB_GPU_VENDOR
