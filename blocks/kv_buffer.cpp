#include "blocks/kv_buffer.h"

#include "kernels/error.h"
#include "kernels/slots.h"

namespace plumb {

KvBuffer::KvBuffer(Device& device, DType dtype, int64_t batch, int64_t heads, int64_t head_dim,
                   int64_t max_length, std::optional<int64_t> window, Tensor position)
    : position_(std::move(position)) {
  if (window && *window < max_length) window_ = window;
  require(!window_ || position_.defined(), "kv_buffer", "a window of ", window_.value_or(0),
          " without the position of the sequence");
  const int64_t slots = window_ ? 2 * *window_ : max_length;
  keys_ = device.allocate(dtype, {batch, heads, slots, head_dim});
  values_ = device.allocate(dtype, {batch, heads, slots, head_dim});
}

KvState KvBuffer::next(int64_t tokens) {
  KvState state;
  const int64_t past = stored_, total = past + tokens;
  require(window_ || total <= keys_.dim(2), "kv_buffer", "has room for ", keys_.dim(2), " tokens, ",
          past, " are stored and ", tokens, " more are to come; ask for a larger maximum length");
  stored_ = total;
  state.query_offset = past;
  if (window_ || (tokens == 1 && position_.defined())) {
    state.key_slots = keys_;
    state.value_slots = values_;
    state.window = window_;
    state.past = {past, position_};
    const int64_t before = tokens > 1 ? KvCache{window_}.kept(past) : 0;
    state.key_offset = past - before;
    if (before > 0) {
      const SlotRange seen = slots_of(past - before, past - 1, window_);
      state.keys_before = keys_.slice(2, seen.begin, seen.end);
      state.values_before = values_.slice(2, seen.begin, seen.end);
    }
  } else {
    state.keys = keys_.slice(2, 0, total);
    state.values = values_.slice(2, 0, total);
  }
  return state;
}

}  // namespace plumb
