// The tokens of a sequence in slots of memory: checks, and how a device without its own way does
// it.
#include "kernels/ops/slots.h"

#include <algorithm>

#include "kernels/ops/device_ops.h"
#include "kernels/ops/op_checks.h"

namespace plumb {

void Ops::store_tokens(const Tensor& key_slots, const Tensor& value_slots, const Tensor& k,
                       const Tensor& v, const Position& past, std::optional<int64_t> window) {
  const char* op = "store_tokens";
  require_floats(op, device_,
                 {{"k", k}, {"v", v}, {"key slots", key_slots}, {"value slots", value_slots}});
  require_position(op, device_, past);
  const auto require_room = [&](const char* name, const Tensor& slots, const Tensor& x) {
    require_rank(op, name, x, 4);
    require_rank(op, name, slots, 4);
    require(slots.dim(0) == x.dim(0) && slots.dim(1) == x.dim(1) && slots.dim(3) == x.dim(3), op,
            name, " has shape ", x.shape(), ", its slots ", slots.shape());
    require_slots(op, slots.dim(2), window, past.now, x.dim(2));
  };
  require_room("k", key_slots, k);
  require_room("v", value_slots, v);
  require(k.dim(2) == v.dim(2), op, "k has ", k.dim(2), " tokens, v ", v.dim(2));
  if (DeviceOps* device = own()) {
    return device->do_store_tokens(key_slots, value_slots, k, v, past, window);
  }
  compose_store_tokens(key_slots, value_slots, k, v, past, window);
}

void Ops::advance(const Position& past, int64_t tokens) {
  require_position("advance", device_, past);
  if (DeviceOps* device = own()) return device->do_advance(past, tokens);
  compose_advance(past, tokens);
}

void Ops::compose_store_tokens(const Tensor& key_slots, const Tensor& value_slots, const Tensor& k,
                               const Tensor& v, const Position& past,
                               std::optional<int64_t> window) {
  const int64_t end = past.now + k.dim(2);
  // Tokens [first, last) from `slot` on.
  const auto store = [&](int64_t slot, int64_t first, int64_t last) {
    const auto to = [&](const Tensor& slots) { return slots.slice(2, slot, slot + last - first); };
    const auto from = [&](const Tensor& x) {
      return x.slice(2, first - past.now, last - past.now);
    };
    copy_pair(to(key_slots), from(k), to(value_slots), from(v));
  };
  if (!window) return store(past.now, past.now, end);
  // From one multiple of the window to the next.
  for (int64_t p = std::max(past.now, end - *window); p < end;) {
    const int64_t next = std::min(end, (p / *window + 1) * *window), slot = p % *window;
    store(slot, p, next);
    store(*window + slot, p, next);
    p = next;
  }
}

void Ops::compose_advance(const Position& past, int64_t tokens) {
  const int64_t length = past.now + tokens;
  device_.upload(past.stored, &length);
}

}  // namespace plumb
