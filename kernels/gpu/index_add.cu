// index_add and scatter_add: a thread owns an element of the output and adds the elements of its id
// in order, so that sums have one order and need no atomics. Ids of a whole axis are sorted before
// (id_order.h), and a thread reads its own alone; where each element has an id, it goes through
// those of its line. Neighbours along rows read the same ids, or neighbouring ones.
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/id_order.h"
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

// Elements that are added in float32.
template <class T>
struct Stored {
  using Sum = float;
  T* out;
  const T *x, *source;

  Stored(const IndexAddCall& call)
      : out(call.out.data<T>()), x(call.x.data<T>()), source(call.source.data<T>()) {}

  __device__ float of_x(int64_t at) const { return to_float(x[at]); }
  __device__ float of_source(int64_t at) const { return to_float(source[at]); }
  __device__ void store(int64_t at, float sum) const { out[at] = from_float<T>(sum); }
};
// Those that are added as they are: f64, or whole numbers and bools.
template <class V>
struct Plain {
  using Sum = V;
  void* out;
  const void *x, *source;
  DType dtype;

  Plain(const IndexAddCall& call)
      : out(call.out.raw()), x(call.x.raw()), source(call.source.raw()), dtype(call.x.dtype()) {}
  __device__ V of_x(int64_t at) const { return load_plain<V>(dtype, x, at); }
  __device__ V of_source(int64_t at) const { return load_plain<V>(dtype, source, at); }
  __device__ void store(int64_t at, V sum) const { store_plain<V>(dtype, out, at, sum); }
};

struct AddOperands {
  Axes8 extents;  // of out
  Strides to, of_x, of_source, of_ids;
  int64_t ids_extents[kMaxRank];
  Ids ids;
  const IdKey* keys;  // of ids that are the axis'; null: each element has its own
  int axis;
  int64_t total;
};

template <class Elements>
__global__ void __launch_bounds__(kThreads) add_by_ids(Elements elements, AddOperands p) {
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
  typename Elements::Sum sum = elements.of_x(x);
  const int64_t terms = has_ids ? p.ids_extents[p.axis] : 0;
  const int64_t id_step = p.of_ids.at[p.axis], step = p.of_source.at[p.axis];
  if (p.keys) {
    for (int64_t at = keys_below(p.keys, terms, key_of(own, 0));
         at < terms && id_of(p.keys[at]) == own; ++at) {
      sum = sum + elements.of_source(source + place_of(p.keys[at]) * step);
    }
  } else {
    for (int64_t term = 0; term < terms; ++term) {
      if (p.ids.at(ids + term * id_step) != own) continue;
      sum = sum + elements.of_source(source + term * step);
    }
  }
  elements.store(to, sum);
}

}  // namespace

void GpuOps::do_index_add(const IndexAddCall& call) {
  const char* op = call.row.name;
  Arena::Scope scope(arena());
  const int64_t below = call.x.dim(call.axis);
  const IdKey* keys = nullptr;
  if (call.op() == OpId::index_add) {
    keys = sorted_ids(*this, call.op(), call.given, below, id_error());
  } else if (call.given.numel() > 0) {
    const CheckOperands p{Ids(call.given),
                          Axes8(call.given.shape()),
                          Strides(call.given),
                          divisible(op, call.given.numel()),
                          below,
                          call.op(),
                          id_error()};
    launch_overlapped<check_ids>(op, {grid_for(p.total, kThreads)}, {kThreads}, 0, stream(), p);
  }
  if (call.out.numel() == 0) return;
  AddOperands p{Axes8(call.out.shape()),
                Strides(call.out),
                Strides(call.x),
                Strides(call.source),
                Strides(call.ids),
                {},
                Ids(call.ids),
                keys,
                call.axis,
                divisible(op, call.out.numel())};
  for (int i = 0; i < call.ids.rank(); ++i) p.ids_extents[i] = call.ids.dim(i);
  const auto add = [&]<class Elements>(const Elements& elements) {
    launch_overlapped<add_by_ids<Elements>>(op, {grid_for(p.total, kThreads)}, {kThreads}, 0,
                                            stream(), elements, p);
  };
  if (is_whole(call.x.dtype())) return add(Plain<Whole>(call));
  if (call.x.dtype() == DType::f64) return add(Plain<double>(call));
  with_storage(op, call.out.dtype(), [&]<class T>(T) { add(Stored<T>(call)); });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
