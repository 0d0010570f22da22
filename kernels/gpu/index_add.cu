// index_add and scatter_add: a thread owns an element of the output and goes through the ids in
// order, so that sums have one order and need no atomics. Neighbours along rows read the same ids,
// or neighbouring ones. A kernel before it looks for unknown ids.
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/ids.h"
#include "kernels/gpu/plain.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256;

struct CheckOperands {
  Ids ids;
  Axes8 extents;
  Strides strides;
  int64_t total, below;
  OpId op;
  IdError* error;
};

__global__ void __launch_bounds__(kThreads) check_ids(CheckOperands p) {
  wait_for_previous_kernel();
  const int64_t i = int64_t{kThreads} * block_index().x + thread_index().x;
  if (i >= p.total) return;
  int64_t offset = 0;
  p.extents.each(i, [&](int axis, int64_t c) { offset += c * p.strides.at[axis]; });
  const int64_t id = p.ids.at(offset);
  if (id < 0 || id >= p.below) note_unknown(p.error, p.op, id, i, p.below);
}

template <class T>
struct AddOperands {
  T* out;
  const T* x;
  const T* source;
  Axes8 extents;  // of out
  Strides to, of_x, of_source, of_ids;
  int64_t ids_extents[kMaxRank];
  Ids ids;
  int axis;
  int64_t total;
};

template <class T>
__global__ void __launch_bounds__(kThreads) add_by_ids(AddOperands<T> p) {
  wait_for_previous_kernel();
  const int64_t i = int64_t{kThreads} * block_index().x + thread_index().x;
  if (i >= p.total) return;
  int64_t to = 0, x = 0, source = 0, ids = 0, own = 0;
  bool has_ids = true;
  p.extents.each(i, [&](int axis, int64_t c) {
    to += c * p.to.at[axis];
    x += c * p.of_x.at[axis];
    if (axis == p.axis) {
      own = c;
      return;
    }
    source += c * p.of_source.at[axis];
    ids += c * p.of_ids.at[axis];
    has_ids = has_ids && c < p.ids_extents[axis];
  });
  float sum = to_float(p.x[x]);
  const int64_t terms = has_ids ? p.ids_extents[p.axis] : 0;
  const int64_t id_step = p.of_ids.at[p.axis], step = p.of_source.at[p.axis];
  for (int64_t term = 0; term < terms; ++term) {
    if (p.ids.at(ids + term * id_step) == own) sum += to_float(p.source[source + term * step]);
  }
  p.out[to] = from_float<T>(sum);
}

}  // namespace

void GpuOps::do_index_add(const IndexAddCall& call) {
  const char* op = call.row.name;
  if (call.given.numel() > 0) {
    const CheckOperands p{Ids(call.given),
                          Axes8(call.given.shape()),
                          Strides(call.given),
                          divisible(op, call.given.numel()),
                          call.x.dim(call.axis),
                          call.op(),
                          id_error()};
    launch_overlapped<check_ids>(op, {grid_for(p.total, kThreads)}, {kThreads}, 0, stream(), p);
  }
  if (call.out.numel() == 0) return;
  if (computes_plainly(call.x.dtype())) return add_by_ids_plainly(*this, call);
  with_storage(op, call.out.dtype(), [&]<class T>(T) {
    AddOperands<T> p{call.out.data<T>(),      call.x.data<T>(),  call.source.data<T>(),
                     Axes8(call.out.shape()), Strides(call.out), Strides(call.x),
                     Strides(call.source),    Strides(call.ids), {},
                     Ids(call.ids),           call.axis,         divisible(op, call.out.numel())};
    for (int i = 0; i < call.ids.rank(); ++i) p.ids_extents[i] = call.ids.dim(i);
    launch_overlapped<add_by_ids<T>>(op, {grid_for(p.total, kThreads)}, {kThreads}, 0, stream(), p);
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
