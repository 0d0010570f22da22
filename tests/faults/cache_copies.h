// What a copy inside a cache update is for.
#pragma once

#include "tests/faults/faulty_device.h"

namespace plumb::harness::testing {

enum class CopyRole {
  before,  // stored slots to the front of all
  fresh,   // new slots behind them
  keep,    // the last slots of all to the state after
};

struct CacheCopy {
  CopyRole role;
  bool values;   // of the values; else of the keys
  int64_t past;  // fresh: slots in front of it
  Tensor all;    // its first slots; memory continues up to `total`
  int64_t total;
};

// Keys are updated before values, and append comes before keep (blocks/kv_cache.h): recognised by
// strides and addresses, as an op does not know its caller.
CacheCopy cache_copy(Call& c, const Tensor& out, const Tensor& x);

// Slots [from_slot, from_slot + n) of `from` to those of `to` at to_slot, through the strides,
// whatever the extent of the slot axis says. [B, H, S, D].
void copy_slots(const Tensor& to, int64_t to_slot, const Tensor& from, int64_t from_slot,
                int64_t n);
// Slots set to zero.
void clear_slots(const Tensor& t, int64_t slot, int64_t n);

}  // namespace plumb::harness::testing
