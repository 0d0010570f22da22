#include "tests/faults/cache_copies.h"
#include "tests/faults/fault.h"
#include "tests/faults/wrong_ops.h"

namespace plumb::harness::testing {
namespace {

// Copies of one role made by `run`; the others are right.
Fault copy_fault(
    CopyRole role, const char* name,
    const std::function<void(Call&, const CacheCopy&, const Tensor& out, const Tensor& x)>& run) {
  return {"kv_cache", name, {.copy = [=](Call& c, auto& out, auto& x) {
            const CacheCopy copy = cache_copy(c, out, x);
            if (copy.role == CopyRole::before) c.kept["before"] = x;
            if (copy.role == role) run(c, copy, out, x);
            else c.ops.copy(out, x);
          }}};
}

// New slots, right but for a change of their values, [B, H, T, D].
Fault fresh_fault(const char* name, const std::function<void(Values&, const Tensor&)>& wrong) {
  return copy_fault(CopyRole::fresh, name, [wrong](Call& c, auto&, auto& out, auto& x) {
    c.ops.copy(out, x);
    edit(out, [&](Values& v) { wrong(v, x); });
  });
}

void heads_reversed(Values& v, const Tensor& x) {
  const auto heads = static_cast<size_t>(x.dim(1));
  const auto head = static_cast<size_t>(x.dim(2) * x.dim(3));
  const Values in = v;
  for (size_t i = 0; i < v.size(); ++i) {
    const size_t h = i / head % heads;
    v[i] = in[i + (heads - 1 - h) * head - h * head];
  }
}

// [B, T, H, D] taken for [B, H, T, D].
void heads_and_slots_exchanged(Values& v, const Tensor& x) {
  const auto heads = static_cast<size_t>(x.dim(1)), slots = static_cast<size_t>(x.dim(2));
  const auto width = static_cast<size_t>(x.dim(3)), batch = heads * slots * width;
  const Values in = v;
  for (size_t i = 0; i < v.size(); ++i) {
    const size_t b = i / batch, t = i / (heads * width) % slots, h = i / width % heads;
    v[i] = in[b * batch + (h * slots + t) * width + i % width];
  }
}

void second_row_from_first(Values& v, const Tensor&) {
  for (size_t i = v.size() / 2; i < v.size(); ++i) v[i] = v[i - v.size() / 2];
}

void last_column_zero(Values& v, const Tensor& x) {
  const auto width = static_cast<size_t>(x.dim(3));
  for (size_t i = width - 1; i < v.size(); i += width) v[i] = 0;
}

void in_bf16(Values& v, const Tensor&) {
  for (double& x : v) x = round_to(DType::bf16, x);
}

void new_slots_first(Call& c, const CacheCopy& copy, const Tensor& out, const Tensor& x) {
  if (copy.past == 0) return c.ops.copy(out, x);
  copy_slots(copy.all, 0, x, 0, x.dim(2));
  copy_slots(copy.all, x.dim(2), c.kept.at("before"), 0, copy.past);
}

void overwrite_the_first(Call& c, const CacheCopy& copy, const Tensor& out, const Tensor& x) {
  if (copy.past == 0) return c.ops.copy(out, x);
  copy_slots(copy.all, 0, x, 0, x.dim(2));
  clear_slots(copy.all, copy.past, x.dim(2));
}

void stored_shifted(Call&, const CacheCopy&, const Tensor& out, const Tensor& x) {
  copy_slots(out, 1, x, 0, x.dim(2) - 1);
  copy_slots(out, 0, x, 0, 1);
}

void values_from_keys(Call& c, const CacheCopy& copy, const Tensor& out, const Tensor& x) {
  if (!copy.values) c.kept["new keys"] = copied(c.ops, x);
  c.ops.copy(out, copy.values ? c.kept.at("new keys") : x);
}

// The state after is made of slots [first, first + kept) of all, moved.
Fault keep_fault(const char* name,
                 const std::function<int64_t(int64_t slot, int64_t kept, int64_t total)>& pick) {
  return copy_fault(CopyRole::keep, name, [pick](Call&, const CacheCopy& copy, auto& out, auto&) {
    for (int64_t slot = 0; slot < out.dim(2); ++slot) {
      copy_slots(out, slot, copy.all, pick(slot, out.dim(2), copy.total), 1);
    }
    // Heads and batch rows as copy.all says: the same as out's.
  });
}

}  // namespace

std::vector<Fault> kv_cache_faults() {
  return {
      copy_fault(CopyRole::fresh, "new slots before the stored ones", new_slots_first),
      copy_fault(CopyRole::fresh, "new slots overwrite the first", overwrite_the_first),
      copy_fault(CopyRole::fresh, "keys stored as values", values_from_keys),
      copy_fault(CopyRole::before, "stored slots lost",
                 [](Call&, auto&, auto& out, auto&) { clear_slots(out, 0, out.dim(2)); }),
      copy_fault(CopyRole::before, "stored slots shifted by one", stored_shifted),
      copy_fault(CopyRole::keep, "new slots never reach the state",
                 [](Call& c, auto&, auto& out, auto& x) {
                   c.ops.copy(out, x);
                   clear_slots(out, out.dim(2) - 1, 1);
                 }),
      keep_fault("eviction of the newest", [](int64_t slot, int64_t, int64_t) { return slot; }),
      keep_fault("window slots kept instead of window - 1",
                 [](int64_t slot, int64_t kept, int64_t total) {
                   return std::max<int64_t>(total - kept - 1, 0) + slot;
                 }),
      keep_fault("one slot too many evicted",
                 [](int64_t slot, int64_t kept, int64_t total) {
                   return total == kept ? slot : std::min(total - kept + 1 + slot, total - 1);
                 }),
      keep_fault("ring not put in order",
                 [](int64_t slot, int64_t kept, int64_t total) {
                   return total == kept ? slot : total - kept + (slot + 1) % kept;
                 }),
      fresh_fault("key heads exchanged", heads_reversed),
      fresh_fault("heads and slots exchanged", heads_and_slots_exchanged),
      fresh_fault("second batch row from the first", second_row_from_first),
      fresh_fault("last column missing", last_column_zero),
      fresh_fault("stored in bf16", in_bf16),
  };
}

}  // namespace plumb::harness::testing
