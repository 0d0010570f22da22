// How sdpa_sm90 divides a problem: tile sizes, shared memory, and the barriers that order it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/core/dtype.h"
#include "kernels/cuda/sdpa_sm90_schedule.h"

namespace plumb::cuda::sm90 {

inline constexpr int kStages = 2;         // tiles of K, and of V, in flight
inline constexpr int kConsumers = 2;      // warpgroups that compute
inline constexpr int kGroupQueries = 64;  // query tokens of a warpgroup
inline constexpr int kWarpgroup = 128;    // threads
inline constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
inline constexpr int kPanel = 64;  // columns of a panel, whose rows are 128 bytes: the swizzle
inline constexpr int kRowBytes = 128;
static_assert(kTileQueries == kConsumers * kGroupQueries);

// Keys of a tile: what shared memory has room for.
constexpr int tile_keys(int head_dim) { return head_dim == 256 ? 80 : 128; }

template <class T, int HeadDim, bool Capped>
struct Tiling {
  using Element = T;
  static constexpr int kHeadDim = HeadDim;
  static constexpr int kPanels = HeadDim / kPanel;
  static constexpr int kKeys = tile_keys(HeadDim);
  static constexpr bool kCapped = Capped;
  // bf16 has float32's range and capped scores are bounded: exp needs no running maximum. The
  // weights are then cut (not rounded) to bf16 before they are summed, so that those which multiply
  // the values add up to exactly the sum that divides.
  static constexpr bool kFixedMaximum = Capped && std::is_same_v<T, BFloat16>;
  // The warpgroups take turns, one feeding the tensor cores while the other does its softmax: 10 %
  // faster at 64 and 256, 2 % slower at 128.
  static constexpr bool kTakeTurns = HeadDim != 128;
  // Small heads: queries live in registers, so that their space is free for the next tile at once,
  // the output has space of its own, and a tile's last product overlaps the next one's first. At
  // 256 neither registers nor shared memory suffice: queries stay, and the output replaces them.
  static constexpr bool kQueriesInRegisters = HeadDim <= 128;

  static constexpr int kQueryBytes = kTileQueries * HeadDim * 2;
  static constexpr int kKeyBytes = kKeys * HeadDim * 2;  // of a tile of K, or of V
  static constexpr int kQueryPanel = kTileQueries * kRowBytes;
  static constexpr int kKeyPanel = kKeys * kRowBytes;
  static constexpr int kAlignment = 1024;  // of a tile, for the swizzle
  static constexpr int kSharedBytes =
      (kQueriesInRegisters ? 2 : 1) * kQueryBytes + 2 * kStages * kKeyBytes + kAlignment;
  static_assert(kSharedBytes <= 226 * 1024);
};

struct Barriers {
  uint64_t query_full[kConsumers], query_empty[kConsumers];
  uint64_t key_full[kStages], key_empty[kStages];
  uint64_t value_full[kStages], value_empty[kStages];
};

// A position in a ring of stages, and the phase its barriers are in.
struct Ring {
  int stage = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// The addresses of the tiles in shared memory: panels of 64 columns, one after the other.
struct SharedTiles {
  char *query, *key, *value, *out;
};

}  // namespace plumb::cuda::sm90
