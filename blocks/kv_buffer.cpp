#include "blocks/kv_buffer.h"

#include "kernels/error.h"

namespace plumb {

KvBuffer::KvBuffer(Device& device, DType dtype, int64_t batch, int64_t heads, int64_t head_dim,
                   int64_t max_length, std::optional<int64_t> window)
    : window_(window) {
  const int64_t slots = window ? std::min(max_length, 2 * *window) : max_length;
  keys_ = device.allocate(dtype, {batch, heads, slots, head_dim});
  values_ = device.allocate(dtype, {batch, heads, slots, head_dim});
}

KvState KvBuffer::next(int64_t tokens, const Tensor& token_valid) {
  KvState state;
  state.token_valid = token_valid;
  const int64_t past = stored_, total = past + tokens;
  if (total <= keys_.dim(2)) {
    state.keys = keys_.slice(2, 0, total);
    state.values = values_.slice(2, 0, total);
    state.query_offset = first_ + past;
    state.key_offset = first_;
    stored_ = total;
    return state;
  }
  require(window_.has_value(), "kv_buffer", "has room for ", keys_.dim(2), " tokens, ", past,
          " are stored and ", tokens, " more are to come; ask for a larger maximum length");
  const KvCache cache{window_};
  const int64_t before = cache.kept(past), after = cache.kept(before + tokens);
  if (before > 0) {
    state.keys_before = keys_.slice(2, past - before, past);
    state.values_before = values_.slice(2, past - before, past);
  }
  // May overlap what was before: that has been read by then.
  state.keys_after = keys_.slice(2, 0, after);
  state.values_after = values_.slice(2, 0, after);
  state.query_offset = first_ + past;
  state.key_offset = first_ + past - before;
  first_ += total - after;
  stored_ = after;
  return state;
}

void KvBuffer::show(const Context& ctx, std::string_view part) const {
  const int64_t hidden = stored_ - KvCache{window_}.kept(stored_);
  ctx.saw(part, "keys_after", keys_.slice(2, hidden, stored_));
  ctx.saw(part, "values_after", values_.slice(2, hidden, stored_));
}

}  // namespace plumb
