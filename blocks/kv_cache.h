#pragma once

#include <algorithm>
#include <optional>

#include "blocks/catalog.h"

namespace plumb {

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

void run_kv_cache(const BlockCall& call);

}  // namespace plumb
