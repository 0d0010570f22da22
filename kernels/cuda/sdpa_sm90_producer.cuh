// The producer of sdpa_sm90: one thread that issues every load, ahead of the consumers.
#pragma once

#include "kernels/cuda/sdpa_sm90_tiling.h"
#include "kernels/cuda/sm90_instructions.cuh"

namespace plumb::cuda::sm90 {

// Loads tiles of K, or of V, into their ring.
template <class Tiling>
struct KeyLoader {
  const CUtensorMap* map;
  char* tiles;
  uint64_t *full, *empty;
  Ring ring{0, 1};  // the first waits for an empty stage pass at once

  __device__ __forceinline__ void load(int key_tile, const QueryTile& t) {
    wait(&empty[ring.stage], ring.phase);
    arrive_expecting(&full[ring.stage], Tiling::kKeyBytes);
    char* to = tiles + ring.stage * Tiling::kKeyBytes;
    for (int panel = 0; panel < Tiling::kPanels; ++panel) {
      load_tile(to + panel * Tiling::kKeyPanel, map, &full[ring.stage], panel * kPanel,
                key_tile * Tiling::kKeys, t.kv_head, t.batch);
    }
    ring.advance();
  }
};

template <class Tiling>
__device__ __forceinline__ void load_queries(const CUtensorMap* map, const SharedTiles& tiles,
                                             Barriers& barriers, const QueryTile& t, int round,
                                             int consumer) {
  uint64_t* full = &barriers.query_full[consumer];
  wait(&barriers.query_empty[consumer], (round & 1) ^ 1);
  arrive_expecting(full, Tiling::kQueryBytes / kConsumers);
  char* to = tiles.query + consumer * kGroupQueries * kRowBytes;
  for (int panel = 0; panel < Tiling::kPanels; ++panel) {
    load_tile(to + panel * Tiling::kQueryPanel, map, full, panel * kPanel,
              t.first_query + consumer * kGroupQueries, t.head, t.batch);
  }
}

template <class Tiling>
__device__ __forceinline__ void produce(const SdpaProblem& p, const CUtensorMap* query_map,
                                        const CUtensorMap* key_map, const CUtensorMap* value_map,
                                        const SharedTiles& tiles, Barriers& barriers) {
  KeyLoader<Tiling> keys{key_map, tiles.key, barriers.key_full, barriers.key_empty};
  KeyLoader<Tiling> values{value_map, tiles.value, barriers.value_full, barriers.value_empty};
  QueryTile t;
  for (int round = 0; find_tile<Tiling::kKeys>(p, round, t); ++round) {
    load_queries<Tiling>(query_map, tiles, barriers, t, round, 0);
    keys.load(t.end_keys - 1, t);
    load_queries<Tiling>(query_map, tiles, barriers, t, round, 1);
    for (int n = t.end_keys - 1; n >= t.first_keys; --n) {
      if (n > t.first_keys) keys.load(n - 1, t);  // the next keys are wanted before these values
      values.load(n, t);
    }
  }
}

}  // namespace plumb::cuda::sm90
