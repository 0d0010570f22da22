// A consumer of sdpa_sm90: a warpgroup that computes the attention of 64 query tokens at a time.
//
// Key tiles are taken from last to first. The scores S' = Q K'^T of the next tile are issued
// together with O += P V of the current one, and the softmax of S' runs while the tensor cores are
// at O.
#pragma once

#include "kernels/cuda/sdpa_sm90_softmax.cuh"
#include "kernels/cuda/sdpa_sm90_tiling.h"
#include "kernels/cuda/sm90_instructions.cuh"
#include "kernels/cuda/sm90_products.cuh"

namespace plumb::cuda::sm90 {

template <class Tiling>
struct Consumer {
  using Element = typename Tiling::Element;
  static constexpr int kHeadDim = Tiling::kHeadDim, kKeys = Tiling::kKeys;
  static constexpr int kScores = kKeys / 2, kOut = kHeadDim / 2;  // per thread
  static constexpr int kSteps = kHeadDim / 16;                    // products along head_dim
  // Named barriers: one per warpgroup for its turn at the tensor cores, and one for its epilogue.
  static constexpr int kTurn = 1, kEpilogue = 3;

  const SdpaProblem& p;
  const CUtensorMap* out_map;
  const SharedTiles tiles;
  Barriers& barriers;
  const int group, thread, warp, lane;  // group: which of the consumers
  const uint32_t query_base, key_base, value_base;

  float scores[kScores], out[kOut];
  uint32_t weights[kScores / 2];
  uint32_t query[Tiling::kQueriesInRegisters ? kHeadDim / 4 : 1];
  Ring key, value;

  __device__ __forceinline__ Consumer(const SdpaProblem& problem, const CUtensorMap* map,
                                      const SharedTiles& shared, Barriers& all, int which)
      : p(problem),
        out_map(map),
        tiles(shared),
        barriers(all),
        group(which),
        thread(static_cast<int>(threadIdx.x % kWarpgroup)),
        warp(thread / 32),
        lane(thread % 32),
        query_base(shared_address(shared.query) + which * kGroupQueries * kRowBytes),
        key_base(shared_address(shared.key)),
        value_base(shared_address(shared.value)) {}

  __device__ __forceinline__ void run() {
    if (Tiling::kTakeTurns && group == 1) end_turn();  // group 0 goes first
    const auto has_tile = [&](int round) { return tile_number(round) < p.tiles; };
    if (Tiling::kQueriesInRegisters && has_tile(0)) first_scores(0);
    QueryTile t;
    for (int round = 0; find_tile<kKeys>(p, round, t); ++round) {
      if (!Tiling::kQueriesInRegisters) first_scores(round);
      Softmax<Tiling> softmax(p, t.first_query + group * kGroupQueries, warp, lane);
      attend(t, softmax);
      if (Tiling::kQueriesInRegisters && has_tile(round + 1)) {
        last_values_and_next_scores(round + 1);
      } else {
        last_values();
      }
      store(t, softmax);
    }
    if (thread == 0) wait_for_stores();
  }

  // All keys of a tile but the product with the values of the last one.
  __device__ __forceinline__ void attend(const QueryTile& t, Softmax<Tiling>& softmax) {
#pragma unroll
    for (int i = 0; i < kOut; ++i) out[i] = 0;
    softmax.weigh(scores, t.end_keys - 1);
    pack_weights();
    for (int n = t.end_keys - 2; n >= t.first_keys; --n) {
      wait(&barriers.key_full[key.stage], key.phase);
      if (Tiling::kTakeTurns) await_turn();
      fence_products();
      issue_scores();
      wait(&barriers.value_full[value.stage], value.phase);
      issue_values();
      if (Tiling::kTakeTurns) end_turn();
      wait_for_products<1>();
      arrived(scores);
      release(barriers.key_empty, key);
      const bool rescale = softmax.weigh(scores, n);
      wait_for_products<0>();
      arrived(out);
      release(barriers.value_empty, value);
      if (!Tiling::kFixedMaximum && rescale) {
#pragma unroll
        for (int i = 0; i < kOut; ++i) out[i] *= softmax.factor[(i >> 1) & 1];
      }
      pack_weights();
    }
  }

  // The first scores of a tile, with nothing to overlap them with.
  __device__ __forceinline__ void first_scores(int round) {
    take_queries(round);
    wait(&barriers.key_full[key.stage], key.phase);
    fence_products();
    issue_scores();
    wait_for_products<0>();
    arrived(scores);
    release(barriers.key_empty, key);
  }

  __device__ __forceinline__ void last_values() {
    wait(&barriers.value_full[value.stage], value.phase);
    fence_products();
    issue_values();
    wait_for_products<0>();
    arrived(out);
    release(barriers.value_empty, value);
  }

  __device__ __forceinline__ void last_values_and_next_scores(int next_round) {
    take_queries(next_round);
    wait(&barriers.key_full[key.stage], key.phase);
    if (Tiling::kTakeTurns) await_turn();
    fence_products();
    issue_scores();
    wait(&barriers.value_full[value.stage], value.phase);
    issue_values();
    if (Tiling::kTakeTurns) end_turn();
    wait_for_products<0>();
    arrived(scores);
    arrived(out);
    release(barriers.key_empty, key);
    release(barriers.value_empty, value);
  }

  __device__ __forceinline__ void take_queries(int round) {
    wait(&barriers.query_full[group], round & 1);
    if constexpr (Tiling::kQueriesInRegisters) {
#pragma unroll
      for (int c = 0; c < kSteps; ++c) {
        load_block(&query[4 * c], shared_address(tiles.query) + block_offset(c));
      }
      __syncwarp();
      if (lane == 0) arrive(&barriers.query_empty[group]);
    }
  }

  __device__ __forceinline__ void issue_scores() {
    const uint64_t queries = shared_operand(not_hoisted(query_base), 16);
    const uint64_t keys = shared_operand(key_base + key.stage * Tiling::kKeyBytes, 16);
#pragma unroll
    for (int c = 0; c < kSteps; ++c) {
      const int panel = c / 4, step = (c % 4) * 32;  // 16 columns are 32 bytes
      const uint64_t b = ahead(keys, panel * Tiling::kKeyPanel + step);
      if constexpr (Tiling::kQueriesInRegisters) {
        if (c == 0) multiply<Element, false, false>(scores, query, b);
        else multiply<Element, false, true>(scores, query + 4 * c, b);
      } else {
        const uint64_t a = ahead(queries, panel * Tiling::kQueryPanel + step);
        if (c == 0) multiply<Element, false>(scores, a, b);
        else multiply<Element, true>(scores, a, b);
      }
    }
    commit_products();
  }

  __device__ __forceinline__ void issue_values() {
    const uint64_t values =
        shared_operand(value_base + value.stage * Tiling::kKeyBytes, Tiling::kKeyPanel);
#pragma unroll
    for (int c = 0; c < kKeys / 16; ++c) {
      multiply<Element, true, true>(out, weights + 4 * c, ahead(values, c * 16 * kRowBytes));
    }
    commit_products();
  }

  __device__ __forceinline__ void pack_weights() {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      weights[i] = pack<Element>(scores[2 * i], scores[2 * i + 1]);
    }
  }

  __device__ __forceinline__ void release(uint64_t* empty, Ring& ring) {
    if (lane == 0) arrive(&empty[ring.stage]);
    ring.advance();
  }

  __device__ __forceinline__ void await_turn() {
    named_sync(kTurn + group, kConsumers * kWarpgroup);
  }
  __device__ __forceinline__ void end_turn() {
    named_arrive(kTurn + 1 - group, kConsumers * kWarpgroup);
  }

  // The offset of this lane's row of the warp's 16 x 16 block c in a swizzled tile of queries.
  __device__ __forceinline__ uint32_t block_offset(int c) const {
    const int row = warp * 16 + lane % 16, chunk = (c % 4) * 2 + lane / 16;  // chunks of 16 bytes
    return group * kGroupQueries * kRowBytes + row * kRowBytes + (c / 4) * Tiling::kQueryPanel +
           (chunk ^ (row & 7)) * 16;
  }

  // Normalises and writes 64 tokens through shared memory; the copy clips tokens that do not exist.
  __device__ __forceinline__ void store(const QueryTile& t, Softmax<Tiling>& softmax) {
    const float inverse[2] = {softmax.inverse_total(0), softmax.inverse_total(1)};
    if (Tiling::kQueriesInRegisters && thread == 0) wait_for_reads();  // of the previous tile
    named_sync(kEpilogue + group, kWarpgroup);
#pragma unroll
    for (int c = 0; c < kSteps; ++c) {
      uint32_t block[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        block[i] = pack<Element>(out[8 * c + 2 * i] * inverse[i & 1],
                                 out[8 * c + 2 * i + 1] * inverse[i & 1]);
      }
      store_block(shared_address(tiles.out) + block_offset(c), block);
    }
    publish_shared_writes();
    named_sync(kEpilogue + group, kWarpgroup);
    if (thread != 0) return;
    for (int panel = 0; panel < Tiling::kPanels; ++panel) {
      store_tile(out_map,
                 tiles.out + panel * Tiling::kQueryPanel + group * kGroupQueries * kRowBytes,
                 panel * kPanel, t.first_query + group * kGroupQueries, t.head, t.batch);
    }
    end_stores();
    if (!Tiling::kQueriesInRegisters) {  // the queries' space was used: hand it back
      wait_for_reads();
      arrive(&barriers.query_empty[group]);
    }
  }
};

}  // namespace plumb::cuda::sm90
