// What feeds a warp of sdpa_decode_sm90: a ring of tiles of K and V, loaded by its first lane and
// read only by this warp, so that warps never wait for each other.
#pragma once

#include "kernels/cuda/sm90_instructions.cuh"

namespace plumb::cuda::sm90 {

struct DecodeMaps {
  CUtensorMap k, v;
};

template <int HeadDim>
struct DecodeTiling {
  static constexpr int kHeadDim = HeadDim;
  static constexpr int kKeys = 16;  // of a tile: rows of one product
  static constexpr int kStages = 3;
  // So many that the rings take all of the shared memory.
  static constexpr int kWarps = 1024 / HeadDim, kThreads = kWarps * 32;
  static constexpr int kRowBytes = 128;  // of a panel of 64 columns: the swizzle
  static constexpr int kPanelBytes = kKeys * kRowBytes;
  static constexpr int kTileBytes = kKeys * HeadDim * 2;  // of K, or of V
  static constexpr int kRingBytes = kStages * 2 * kTileBytes;
  static constexpr int kAlignment = 1024;  // of a tile, for the swizzle
  static constexpr int kSharedBytes = kWarps * kRingBytes + kAlignment;
  static_assert(kSharedBytes <= 226 * 1024);
};

// The tiles of a warp: its first keys are those from `first` on, the next ones follow after
// those of all other warps.
template <class Tiling>
struct DecodeRing {
  struct Barriers {
    uint64_t key[Tiling::kStages], value[Tiling::kStages];
  };

  const DecodeMaps& maps;
  char* const tiles;
  Barriers& barriers;
  const int kv_head, batch;
  int first = 0, count = 0;  // of keys; of tiles
  int stage = 0;
  uint32_t phase = 0;

  // By one lane, before it loads.
  __device__ __forceinline__ void start() {
#pragma unroll
    for (int i = 0; i < Tiling::kStages; ++i) {
      initialise(&barriers.key[i], 1);
      initialise(&barriers.value[i], 1);
    }
    publish_barriers();
  }

  __device__ __forceinline__ int key_of(int tile) const {
    return first + tile * Tiling::kWarps * Tiling::kKeys;
  }
  __device__ __forceinline__ char* keys() const { return tiles + stage * 2 * Tiling::kTileBytes; }
  __device__ __forceinline__ char* values() const { return keys() + Tiling::kTileBytes; }

  __device__ __forceinline__ void await_keys() const { wait(&barriers.key[stage], phase); }
  __device__ __forceinline__ void await_values() const { wait(&barriers.value[stage], phase); }

  // The first tiles, by one lane.
  __device__ __forceinline__ void fill() {
#pragma unroll 1
    for (int i = 0; i < Tiling::kStages && i < count; ++i) {
      char* to = tiles + i * 2 * Tiling::kTileBytes;
      load(to, &maps.k, &barriers.key[i], i);
      load(to + Tiling::kTileBytes, &maps.v, &barriers.value[i], i);
    }
  }
  // What takes the place of the keys, or values, of a tile that the warp has read.
  __device__ __forceinline__ void replace_keys(int tile, int lane) {
    __syncwarp();
    if (lane == 0 && tile + Tiling::kStages < count) {
      load(keys(), &maps.k, &barriers.key[stage], tile + Tiling::kStages);
    }
  }
  __device__ __forceinline__ void replace_values(int tile, int lane) {
    __syncwarp();
    if (lane == 0 && tile + Tiling::kStages < count) {
      load(values(), &maps.v, &barriers.value[stage], tile + Tiling::kStages);
    }
  }
  __device__ __forceinline__ void advance() {
    if (++stage == Tiling::kStages) {
      stage = 0;
      phase ^= 1;
    }
  }

 private:
  __device__ __forceinline__ void load(char* to, const CUtensorMap* map, uint64_t* barrier,
                                       int tile) const {
    arrive_expecting(barrier, Tiling::kTileBytes);
    load_rows_once(to, map, barrier, key_of(tile), kv_head, batch);
  }
};

}  // namespace plumb::cuda::sm90
