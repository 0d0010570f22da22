#include "blocks/kv_buffer.h"

#include "kernels/core/error.h"
#include "kernels/ops/slots.h"

namespace plumb::blocks {

KvBuffer::KvBuffer(Device& device, DType dtype, int64_t batch, int64_t heads, int64_t head_dim,
                   int64_t max_length, std::optional<int64_t> window, Tensor position,
                   CacheKind kind)
    : window_(window), kind_(kind), position_(std::move(position)) {
  if (window && *window < max_length) ring_ = window;
  require(!ring_ || position_.defined(), "kv_buffer", "a window of ", ring_.value_or(0),
          " without the position of the sequence");
  const int64_t slots = ring_ ? 2 * *ring_ : max_length;
  keys_ = device.allocate(dtype, {batch, heads, slots, head_dim});
  values_ = device.allocate(dtype, {batch, heads, slots, head_dim});
  if (kind == CacheKind::fixed) {  // whose unused slots are shown, and seen where all are masked
    device.fill(keys_, 0);
    device.fill(values_, 0);
  }
}

KvState KvBuffer::next(int64_t tokens, const Tensor& token_valid) {
  KvState state;
  state.token_valid = token_valid;
  const int64_t past = stored_, total = past + tokens;
  require(ring_ || total <= keys_.dim(2), "kv_buffer", "has room for ", keys_.dim(2), " tokens, ",
          past, " are stored and ", tokens, " more are to come; ask for a larger maximum length");
  stored_ = total;
  state.query_offset = past;
  const KvSlots slots{keys_, values_, ring_, {past, position_}};
  if (tokens == 1 && position_.defined() && !token_valid.defined()) {
    state.cache = KvStep{slots};
    return state;
  }
  const auto first = [&](int64_t count) {
    return KvInOrder{keys_.slice(2, 0, count), values_.slice(2, 0, count)};
  };
  const bool fixed = kind_ == CacheKind::fixed && total <= held();
  if (!ring_) {
    state.cache = first(fixed ? held() : total);
    return state;
  }
  KvSliding sliding{slots, {}, {}};
  if (fixed) {
    sliding.stored = first(held());
  } else if (const int64_t before = KvCache{ring_}.kept(past); before > 0) {
    const SlotRange seen = slots_of(past - before, past - 1, ring_);
    sliding.before.keys_before = keys_.slice(2, seen.begin, seen.end);
    sliding.before.values_before = values_.slice(2, seen.begin, seen.end);
    state.key_offset = past - before;
  } else {
    state.key_offset = past;
  }
  state.cache = sliding;
  return state;
}

void KvBuffer::show(const Context& ctx, std::string_view part) const {
  const int64_t kept = kind_ == CacheKind::fixed ? held() : KvCache{window_}.kept(stored_);
  const int64_t first = std::max<int64_t>(stored_ - kept, 0);
  const SlotRange seen = slots_of(first, first + kept - 1, ring_);
  ctx.probe(part, "keys_after", keys_.slice(2, seen.begin, seen.end));
  ctx.probe(part, "values_after", values_.slice(2, seen.begin, seen.end));
}

}  // namespace plumb::blocks
