#pragma once

#include "blocks/attention.h"

namespace plumb {

// The keys and values of one layer of a running sequence, in memory taken once: new slots are
// written behind the old ones, and attention sees them in place. What attention computes is that of
// KvCache, HF's dynamic cache. A sliding layer's buffer has room for two windows; when it is full,
// the last window - 1 slots move to its start.
class KvBuffer {
 public:
  // Room for `max_length` tokens; a sliding layer takes any number.
  KvBuffer(Device& device, DType dtype, int64_t batch, int64_t heads, int64_t head_dim,
           int64_t max_length, std::optional<int64_t> window);

  // Where attention puts the next `tokens` tokens' keys and values and what it sees; they count as
  // stored from then on. UsageError when there is no room. `token_valid` as KvState has it.
  KvState next(int64_t tokens, const Tensor& token_valid = {});

  // Shows an observer the slots that HF's cache holds now, as keys_after and values_after of
  // `part`.
  void show(const Context& ctx, std::string_view part) const;

  int64_t bytes() const { return keys_.bytes() + values_.bytes(); }

 private:
  Tensor keys_, values_;  // [B, Hkv, slots, D]
  std::optional<int64_t> window_;
  int64_t first_ = 0;   // the token in slot 0
  int64_t stored_ = 0;  // slots in use
};

}  // namespace plumb
