// Key-value caches as blocks: HF's DynamicCache and StaticCache.
#pragma once

#include <algorithm>
#include <optional>

#include "blocks/catalog.h"

namespace plumb::blocks {

// Which of HF's caches a sequence has, DynamicCache or StaticCache: attention sees the same tokens,
// in other slots.
enum class CacheKind { dynamic, fixed };

// A dynamic key-value cache of one layer: the new keys and values are appended; a sliding layer
// then keeps the last window - 1 slots, while attention still sees everything. Copies only: exact.
// HF: cache_utils.py, DynamicLayer and DynamicSlidingWindowLayer.
struct KvCache {
  std::optional<int64_t> window;

  static KvCache load(const Params& params);  // kind, window

  // Slots that stay after `total` were seen by attention.
  int64_t kept(int64_t total) const { return window ? std::min(*window - 1, total) : total; }

  // all = before ++ fresh along the slot axis. before [B, Hkv, P, D] or undefined, fresh
  // [B, Hkv, T, D], all [B, Hkv, P + T, D].
  void append(Context& ctx, const Tensor& all, const Tensor& before, const Tensor& fresh) const;
  // after = the last kept(S) slots of all.
  void keep(Context& ctx, const Tensor& after, const Tensor& all) const;
};

// A static cache: buffers of a fixed number of slots, zeros at first, that begin with the first
// token and, when a sliding layer's are full, hold the last tokens. Attention sees the buffers as
// they are after the update, unused slots included, or, in a call that does not fit into a sliding
// layer's, what it held and the new slots. HF: StaticLayer and StaticSlidingWindowLayer.
struct StaticKvCache {
  int64_t slots = 0;
  bool sliding = false;
  int64_t seen = 0;  // tokens before this call

  static StaticKvCache load(const Params& params);  // max_length, window, seen

  // Slots that attention sees after `tokens` more. UsageError where a full layer has no room.
  int64_t returned(int64_t tokens) const;
  // all and after from before and fresh. before, after [B, Hkv, slots, D], fresh [B, Hkv, T, D],
  // all [B, Hkv, returned(T), D]. after may be before: slots that keep their tokens stay untouched.
  void update(Context& ctx, const Tensor& all, const Tensor& after, const Tensor& before,
              const Tensor& fresh) const;
  // Whether attention sees the buffers; their slots behind the new ones are unused.
  bool fits(int64_t tokens) const { return seen + tokens <= slots; }

 private:
  // The first of the stored slots that are seen besides new ones that do not fit.
  int64_t oldest() const { return seen < slots ? 0 : 1; }
};

void run_kv_cache(const BlockCall& call);
void run_static_kv_cache(const BlockCall& call);

}  // namespace plumb::blocks
