// Keys and values of a running sequence in preallocated memory.
#pragma once

#include "blocks/attention.h"

namespace plumb::blocks {

// The keys and values of one layer of a running sequence, in memory taken once: new slots are
// appended to the old ones, and attention sees them in place. What attention computes is that of
// KvCache, HF's dynamic cache, or, where it is fixed, of StaticKvCache. A sliding layer has slots
// for two windows, each token being in two of them (Ops::store_tokens), unless the whole sequence
// fits into one window.
class KvBuffer {
 public:
  // Room for `max_length` tokens; a sliding layer that slides takes any number. `position` i64 [1]
  // is the sequence's, in the device's memory: always as many tokens as are stored here. Without it
  // a layer cannot slide, and its launches depend on the position.
  KvBuffer(Device& device, DType dtype, int64_t batch, int64_t heads, int64_t head_dim,
           int64_t max_length, std::optional<int64_t> window, Tensor position = {},
           CacheKind kind = CacheKind::dynamic);

  // Where attention puts the next `tokens` tokens' keys and values and what it sees; they count as
  // stored from then on. UsageError when there is no room. `token_valid` as KvState has it.
  KvState next(int64_t tokens, const Tensor& token_valid = {});

  // Shows an observer the slots that HF's cache holds now, as keys_after and values_after of
  // `part`.
  void show(const Context& ctx, std::string_view part) const;

  // Counts a token that replayed launches have stored.
  void count_replayed() { ++stored_; }

  int64_t bytes() const { return keys_.bytes() + values_.bytes(); }

 private:
  Tensor keys_, values_;  // [B, Hkv, slots, D]
  std::optional<int64_t> window_;
  CacheKind kind_;
  std::optional<int64_t> ring_;  // the window, if it slides; else tokens are stored in order
  Tensor position_;
  int64_t stored_ = 0;  // tokens

  int64_t held() const { return ring_.value_or(keys_.dim(2)); }  // slots of HF's static cache
};

}  // namespace plumb::blocks
