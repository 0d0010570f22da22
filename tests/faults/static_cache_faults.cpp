// Faults of static caches, above all of slots that an update must not touch.
#include <algorithm>
#include <cmath>

#include "tests/faults/cache_copies.h"
#include "tests/faults/edits.h"
#include "tests/faults/fault.h"

namespace plumb::harness::testing {
namespace {

constexpr const char* kBlock = "static_kv_cache";

// Slots of the buffer that contains a view of some.
int64_t slots_of(const Tensor& t) { return t.stride(1) / t.stride(2); }

// What a copy writes, changed: a whole buffer, or some slots of one.
Fault copied_fault(const char* name, bool whole, const Edit& change) {
  return {kBlock, name, {.copy = [=](Call& c, auto& out, auto& x) {
            c.ops.copy(out, x);
            if (whole == (out.dim(2) == slots_of(out))) {
              edit(out, [&](Values& v) { change(v, out); });
            }
          }}};
}

// The new slots also, or instead, somewhere else; `run` gets where they belong.
Fault slots_fault(const char* name,
                  const std::function<void(const Tensor& out, const Tensor& x)>& run) {
  return {kBlock, name, {.copy = [run](Call& c, auto& out, auto& x) {
            c.ops.copy(out, x);
            if (out.dim(2) < slots_of(out)) run(out, x);
          }}};
}

// Of full layers, whose buffers have room: what attention sees keeps its length.
Fault seen_fault(const char* name, double by, bool from_start = false) {
  Fault out{kBlock, name, {}};
  out.numbers = [=](blocks::Params& params) {
    const double seen = params.number("seen"), other = from_start ? by : seen + by;
    if (!params.is_null("window") || other == seen || other < 0) return false;
    params.set("seen", other);
    return true;
  };
  return out;
}

}  // namespace

std::vector<Fault> static_kv_cache_faults() {
  std::vector<Fault> out = {
      copied_fault("unused slots not quite zero", true,
                   [](Values& v, const Tensor&) {
                     for (double& x : v) x = x == 0 ? 1e-30 : x;
                   }),
      copied_fault("first stored slot off by one unit", true,
                   [](Values& v, const Tensor& t) {
                     v.front() +=
                         std::fmax(std::fabs(v.front()), 1e-3) * 2 * unit_roundoff(t.dtype());
                   }),
      copied_fault("last slot of the buffer written", true,
                   [](Values& v, const Tensor&) { v.back() += 1; }),
      copied_fault("stored slots lost", true,
                   [](Values& v, const Tensor&) { std::fill(v.begin(), v.end(), 0); }),
      copied_fault("stored in bf16", true,
                   [](Values& v, const Tensor&) {
                     for (double& x : v) x = round_to(DType::bf16, x);
                   }),
      slots_fault("the slot behind the new ones written, too",
                  [](const Tensor& to, const Tensor& x) {
                    const int64_t behind = to.dim(2);
                    if (behind < slots_of(to) - 1) clear_slots(to, behind, 1);
                    copy_slots(to, 0, x, 0, x.dim(2));
                  }),
      slots_fault("last new slot missing",
                  [](const Tensor& to, const Tensor&) { clear_slots(to, to.dim(2) - 1, 1); }),
      seen_fault("written one slot early", -1),
      seen_fault("written one slot late", 1),
      seen_fault("written at the start", 0, true),
  };
  // A ring that is not put in order: the last slot seen becomes the first.
  out.push_back({kBlock, "ring not put in order", {.copy = [](Call& c, auto& to, auto& x) {
                   c.ops.copy(to, x);
                   const bool kept = x.dim(2) == to.dim(2) && slots_of(x) > slots_of(to);
                   if (!kept) return;
                   for (int64_t s = 0; s < to.dim(2); ++s) {
                     copy_slots(to, s, x, (s + 1) % to.dim(2), 1);
                   }
                 }}});
  for (const auto& [name, change] : edits()) out.push_back(copied_fault(name, false, change));
  return out;
}

}  // namespace plumb::harness::testing
