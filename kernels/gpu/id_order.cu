// Ids are sorted by merging: a block sorts as many keys as it has threads, by counting those that
// are smaller; then pairs of sorted runs become one, in which a key's place is its own in its run
// and the number of smaller ones in the other, found by bisection. A thread owns a key. n log n
// reads, no atomics.
#include <algorithm>
#include <utility>

#include "kernels/core/error.h"
#include "kernels/gpu/id_order.h"
#include "kernels/gpu/ids.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256;

struct IdOperands {
  Ids ids;
  Rows rows;
  Divisor width;
  int64_t count, below;
  OpId op;
  IdError* error;
};

struct BlockOfKeys {
  IdKey keys[kThreads];
};

__global__ void __launch_bounds__(kThreads) sort_blocks(IdOperands p, IdKey* out) {
  wait_for_previous_kernel();
  auto& shared = block_shared<BlockOfKeys>();
  const int thread = static_cast<int>(thread_index().x);
  const int64_t first = int64_t{kThreads} * block_index().x, place = first + thread;
  IdKey own = ~IdKey{0};  // behind all others
  if (place < p.count) {
    const Division at = divide(place, p.width);
    const int64_t id = p.ids.at(p.rows.offset(at.quotient) + at.remainder);
    const bool known = id >= 0 && id < p.below;
    if (!known) note_unknown(p.error, p.op, id, place, p.below);
    own = key_of(known ? id : p.below, place);
  }
  shared.keys[thread] = own;
  block_barrier();
  if (place >= p.count) return;
  int smaller = 0;
  for (int i = 0; i < kThreads; ++i) smaller += shared.keys[i] < own;
  out[first + smaller] = own;
}

__global__ void __launch_bounds__(kThreads)
    merge_runs(const IdKey* in, IdKey* out, int64_t count, int64_t width) {
  wait_for_previous_kernel();
  const int64_t i = int64_t{kThreads} * block_index().x + thread_index().x;
  if (i >= count) return;
  const int64_t run = i / width, other = (run ^ 1) * width, pair = (run & ~int64_t{1}) * width;
  const int64_t left = count - other, others = left < 0 ? 0 : left < width ? left : width;
  out[pair + (i - run * width) + keys_below(in + other, others, in[i])] = in[i];
}

}  // namespace

const IdKey* sorted_ids(GpuOps& ops, OpId op, const Tensor& ids, int64_t below, IdError* error) {
  const char* name = name_of(op).data();
  const int64_t count = ids.numel();
  require<Unsupported>(count < int64_t{1} << 32 && below < int64_t{1} << 32, name, count,
                       " ids below ", below, ", at most 2^32 - 1 are implemented");
  const auto take = [&] {
    return static_cast<IdKey*>(ops.arena().take(DType::i64, {std::max<int64_t>(1, count)}).raw());
  };
  IdKey *sorted = take(), *next = take();
  if (count == 0) return sorted;
  const Divisor width(std::max<int64_t>(1, ids.dim(-1)));
  const IdOperands p{Ids(ids), rows_of(name, ids), width, count, below, op, error};
  launch_overlapped<sort_blocks>(name, {grid_for(count, kThreads)}, {kThreads}, 0, ops.stream(), p,
                                 sorted);
  for (int64_t run = kThreads; run < count; run *= 2) {
    launch_overlapped<merge_runs>(name, {grid_for(count, kThreads)}, {kThreads}, 0, ops.stream(),
                                  static_cast<const IdKey*>(sorted), next, count, run);
    std::swap(sorted, next);
  }
  return sorted;
}

}  // namespace plumb::PLUMB_GPU_VENDOR
