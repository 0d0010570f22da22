// Which query tokens a block of sdpa_sm90 takes, and which tiles of keys they see.
//
// Blocks stay on their multiprocessor and take tile after tile: kTileQueries tokens of one head.
// Heavy tiles go first (under a causal mask the last tokens see the most keys), dealt out in snake
// order so that the blocks' shares come out even. Only the shape decides: no result depends on
// timing.
#pragma once

#include <cuda_runtime.h>

namespace plumb::cuda::sm90 {

inline constexpr int kTileQueries = 128;

// One attention, as the kernel takes it. Query token t has key slot t + shift, and every token
// sees at least one key.
struct SdpaProblem {
  int batch, heads, group, queries, keys;  // group: heads that share one key-value head
  int shift;
  int window;  // 0: none
  bool causal;
  int query_tiles, tiles;  // tiles = query_tiles * batch * heads
  float scale_log2;        // scale * log2(e), used without a softcap
  float scale_over_cap;
  float cap_log2;  // cap * log2(e)
};

struct QueryTile {
  int first_query, batch, head, kv_head;
  int first_keys, end_keys;  // tiles of keys, at least one
};

// The number of the block's tile of a round; p.tiles or more when there is none left.
__device__ __forceinline__ int tile_number(int round) {
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  return round * blocks + (round & 1 ? blocks - 1 - block : block);
}

// The block's tile of a round; false when there is none left.
template <int TileKeys>
__device__ __forceinline__ bool find_tile(const SdpaProblem& p, int round, QueryTile& tile) {
  const int id = tile_number(round);
  if (id >= p.tiles) return false;
  const int slices = p.batch * p.heads, slice = id % slices;
  tile.first_query = (p.query_tiles - 1 - id / slices) * kTileQueries;
  tile.batch = slice / p.heads;
  tile.head = slice % p.heads;
  tile.kv_head = tile.head / p.group;
  const int first_slot = tile.first_query + p.shift;
  const int last_slot = min(tile.first_query + kTileQueries, p.queries) - 1 + p.shift;
  const int end = p.causal ? min(p.keys, last_slot + 1) : p.keys;
  tile.first_keys = p.window ? max(0, first_slot - p.window + 1) / TileKeys : 0;
  tile.end_keys = (end + TileKeys - 1) / TileKeys;
  return true;
}

}  // namespace plumb::cuda::sm90
