// Attention on Hopper GPUs: wgmma and TMA, specialised warpgroups, persistent blocks. Flash
// attention's order (Dao et al. 2022; overlap and warp specialisation: Shah et al. 2024).
//
// A block is three warpgroups, alone on its multiprocessor. The first feeds tiles of Q, K and V to
// shared memory, the two others compute 64 query tokens each. Contract: products of 16-bit numbers
// with float32 sums in the tensor cores; weights are rounded (bf16 with a softcap: cut) to 16 bits
// before they multiply the values; one rounding at the output.
#include <algorithm>

#include "kernels/cuda/sdpa_sm90.h"
#include "kernels/cuda/sdpa_sm90_consumer.cuh"
#include "kernels/cuda/sdpa_sm90_producer.cuh"

namespace plumb::cuda::sm90 {
namespace {

__device__ __forceinline__ void start(Barriers& barriers, int query_arrivals) {
  constexpr int kConsumerWarps = kConsumers * kWarpgroup / 32;
  for (int i = 0; i < kConsumers; ++i) {
    initialise(&barriers.query_full[i], 1);
    initialise(&barriers.query_empty[i], query_arrivals);
  }
  for (int i = 0; i < kStages; ++i) {
    initialise(&barriers.key_full[i], 1);
    initialise(&barriers.key_empty[i], kConsumerWarps);
    initialise(&barriers.value_full[i], 1);
    initialise(&barriers.value_empty[i], kConsumerWarps);
  }
  publish_barriers();
}

template <class Tiling>
__device__ __forceinline__ SharedTiles lay_out(char* shared) {
  constexpr uint32_t kMask = Tiling::kAlignment - 1;
  SharedTiles tiles;
  tiles.query = shared + ((Tiling::kAlignment - (shared_address(shared) & kMask)) & kMask);
  tiles.key = tiles.query + Tiling::kQueryBytes;
  tiles.value = tiles.key + kStages * Tiling::kKeyBytes;
  tiles.out = Tiling::kQueriesInRegisters ? tiles.value + kStages * Tiling::kKeyBytes : tiles.query;
  return tiles;
}

template <class Tiling>
__global__ void __launch_bounds__(kThreads, 1)
    attend(const __grid_constant__ SdpaProblem p, const __grid_constant__ SdpaMaps maps) {
  // The registers of a warpgroup after they are redistributed. The sum must not exceed the
  // launch's share, 3 x 168: else a warpgroup waits for registers forever.
  constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= 3 * 168);
  __shared__ Barriers barriers;
  const SharedTiles tiles = lay_out<Tiling>(dynamic_shared<char>());
  // Queries in registers are given back by each of four warps, else by the thread that stores.
  if (threadIdx.x == 0) start(barriers, Tiling::kQueriesInRegisters ? 4 : 1);
  __syncthreads();
  wait_for_previous_kernel();
  if (threadIdx.x < kWarpgroup) {
    give_up_registers<kProducerRegisters>();
    if (threadIdx.x == 0) produce<Tiling>(p, &maps.q, &maps.k, &maps.v, tiles, barriers);
  } else {
    take_registers<kConsumerRegisters>();
    const int group = static_cast<int>(threadIdx.x / kWarpgroup) - 1;
    Consumer<Tiling>(p, &maps.out, tiles, barriers, group).run();
  }
}

// Calls f.operator()<Tiling>() with the plan's.
template <class F>
void with_tiling(const SdpaPlan& plan, F f) {
  const auto with_head_dim = [&]<class Element, bool Capped>() {
    if (plan.head_dim == 64) f.template operator()<Tiling<Element, 64, Capped>>();
    else if (plan.head_dim == 128) f.template operator()<Tiling<Element, 128, Capped>>();
    else f.template operator()<Tiling<Element, 256, Capped>>();
  };
  const auto with_cap = [&]<class Element>() {
    if (plan.capped) with_head_dim.template operator()<Element, true>();
    else with_head_dim.template operator()<Element, false>();
  };
  if (plan.dtype == DType::bf16) with_cap.template operator()<BFloat16>();
  else with_cap.template operator()<Float16>();
}

}  // namespace

void run_sdpa(const SdpaPlan& plan, Stream stream, int multiprocessors) {
  with_tiling(plan, [&]<class T>() {
    const auto blocks = static_cast<unsigned>(std::min(plan.problem.tiles, multiprocessors));
    launch_overlapped<attend<T>>("sdpa", {blocks}, {kThreads}, T::kSharedBytes, stream,
                                 plan.problem, plan.maps);
  });
}

}  // namespace plumb::cuda::sm90
