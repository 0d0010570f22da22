// Which slots hold what Ops::store_tokens has put there.
#pragma once

#include <cstdint>
#include <optional>

namespace plumb {

struct SlotRange {
  int64_t begin, end;
};

// The tokens first, ..., last (of the last `window`, if any), which are neighbours.
inline SlotRange slots_of(int64_t first, int64_t last, std::optional<int64_t> window) {
  const int64_t begin = window ? first % *window : first;
  return {begin, begin + last + 1 - first};
}

// What the token behind `past` others sees, itself included.
inline SlotRange visible_slots(int64_t past, std::optional<int64_t> window) {
  return slots_of(window && past >= *window ? past + 1 - *window : 0, past, window);
}

}  // namespace plumb
