// Elementwise ops, reductions and running sums of f64, whole numbers and bools. A thread per
// element of the output, or a group of threads per result of a reduction, which are combined as a
// tree.
#include <algorithm>
#include <bit>

#include "kernels/gpu/plain.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256;

template <class V>
struct MapOperands {
  void* out;
  DType to;
  Strides out_strides;
  const void* in[3];
  DType from[3];
  Strides strides[3];
  Axes8 extents;
  int64_t total;
  ArithmeticOf<V> m;
};

template <class V, class F>
__global__ void __launch_bounds__(kThreads) map_elements(MapOperands<V> p) {
  wait_for_previous_kernel();
  const int64_t i = int64_t{kThreads} * block_index().x + thread_index().x;
  if (i >= p.total) return;
  int64_t to = 0, at[3] = {};
  p.extents.each(i, [&](int axis, int64_t c) {
    to += c * p.out_strides.at[axis];
    for (int j = 0; j < F::kInputs; ++j) at[j] += c * p.strides[j].at[axis];
  });
  V x[3] = {};
  for (int j = 0; j < F::kInputs; ++j) {
    const bool flag = j == 0 && F::kHasCondition;
    x[j] = flag ? plain_number<V>(static_cast<const bool*>(p.in[j])[at[j]])
                : load_plain<V>(p.from[j], p.in[j], at[j]);
  }
  V y;
  if constexpr (F::kInputs == 1) y = F::of(p.m, x[0]);
  else if constexpr (F::kInputs == 2) y = F::of(p.m, x[0], x[1]);
  else y = F::of(p.m, x[0], x[1], x[2]);
  if constexpr (F::kGivesBool) static_cast<bool*>(p.out)[to] = !(y == plain_number<V>(0));
  else store_plain<V>(p.to, p.out, to, y);
}

template <class V>
void map_as(GpuOps& ops, const MapCall& call, const ArithmeticOf<V>& m) {
  const Tensor* const in[] = {&call.a, call.b ? call.b : &call.a, call.c ? call.c : &call.a};
  MapOperands<V> p{call.out.raw(),
                   call.out.dtype(),
                   Strides(call.out),
                   {in[0]->raw(), in[1]->raw(), in[2]->raw()},
                   {in[0]->dtype(), in[1]->dtype(), in[2]->dtype()},
                   {Strides(*in[0]), Strides(*in[1]), Strides(*in[2])},
                   Axes8(call.out.shape()),
                   divisible(call.row.name, call.out.numel()),
                   m};
  const auto go = [&]<class F>() {
    launch_overlapped<map_elements<V, F>>(call.row.name, {grid_for(p.total, kThreads)}, {kThreads},
                                          0, ops.stream(), p);
  };
  if constexpr (std::is_same_v<V, Whole>) with_whole_formula(call.formula, go);
  else with_formula(call.formula, go);
}

struct ReduceOperands {
  void* out;
  DType to;
  Strides out_strides;
  const void* x;
  DType from;
  Strides kept_strides, reduced_strides;  // of x
  Axes8 kept, reduced;
  int64_t results, count;
  int group;
};

template <class V, class F>
using StateOf =
    reductions::State<V, std::conditional_t<F::kBeside == reductions::Beside::value, V, int64_t>>;

template <class S>
struct GroupStates {
  S of_thread[kThreads];
};

template <class V, class F>
__global__ void __launch_bounds__(kThreads) reduce_elements(ReduceOperands p) {
  wait_for_previous_kernel();
  using State = StateOf<V, F>;
  constexpr bool kTwoValues = F::kBeside == reductions::Beside::value;
  const ArithmeticOf<V> m{};
  auto& states = block_shared<GroupStates<State>>();
  const int thread = static_cast<int>(thread_index().x), lane = thread % p.group;
  const int64_t result = int64_t{block_index().x} * (kThreads / p.group) + thread / p.group;
  State state{F::template start<V>(m), {}};
  int64_t to = 0, first = 0;
  if (result < p.results) {
    p.kept.each(result, [&](int axis, int64_t c) {
      to += c * p.out_strides.at[axis];
      first += c * p.kept_strides.at[axis];
    });
    for (int64_t i = lane; i < p.count; i += p.group) {
      int64_t at = first;
      p.reduced.each(i, [&](int axis, int64_t c) { at += c * p.reduced_strides.at[axis]; });
      const V x = load_plain<V>(p.from, p.x, at);
      if constexpr (kTwoValues) state = F::step(m, state, x, V{});
      else state = F::step(m, state, x, i);
    }
  }
  states.of_thread[thread] = state;
  for (int half = p.group / 2; half > 0; half /= 2) {
    block_barrier();
    if (lane < half) {
      states.of_thread[thread] =
          F::combine(m, states.of_thread[thread], states.of_thread[thread + half]);
    }
  }
  if (lane > 0 || result >= p.results) return;
  const auto y = F::finish(m, states.of_thread[thread], plain_number<V>(p.count));
  if constexpr (F::kBeside == reductions::Beside::index) static_cast<int64_t*>(p.out)[to] = y;
  else if constexpr (F::kTakesBools) static_cast<bool*>(p.out)[to] = !(y == plain_number<V>(0));
  else store_plain<V>(p.to, p.out, to, y);
}

template <class V>
void reduce_as(GpuOps& ops, const ReduceCall& call) {
  const Tensor kept = call.kept(), reduced = call.reduced();
  constexpr int64_t kOwn = 8;  // elements of a thread before another helps it
  const int group = static_cast<int>(
      std::bit_floor(static_cast<uint64_t>(std::clamp<int64_t>(call.count / kOwn, 1, kThreads))));
  const ReduceOperands p{call.out.raw(),
                         call.out.dtype(),
                         Strides(call.out),
                         call.x.raw(),
                         call.x.dtype(),
                         Strides(kept),
                         Strides(reduced),
                         Axes8(call.out.shape()),
                         Axes8(reduced.shape()),
                         divisible(call.row.name, call.out.numel()),
                         divisible(call.row.name, call.count),
                         group};
  const auto go = [&]<class F>() {
    launch_overlapped<reduce_elements<V, F>>(call.row.name, {grid_for(p.results, kThreads / group)},
                                             {kThreads}, 0, ops.stream(), p);
  };
  if constexpr (std::is_same_v<V, Whole>) with_whole_reduction(call.reduction(), go);
  else with_reduction(call.reduction(), go);
}

struct RunningOperands {
  void* out;
  DType to;
  const void* x;
  DType from;
  Strides out_strides, x_strides;
  Axes8 lines;
  int64_t total, length, out_step, x_step;
};

template <class V>
__global__ void __launch_bounds__(kThreads) running_sums(RunningOperands p) {
  wait_for_previous_kernel();
  const int64_t line = int64_t{kThreads} * block_index().x + thread_index().x;
  if (line >= p.total) return;
  int64_t to = 0, from = 0;
  p.lines.each(line, [&](int axis, int64_t c) {
    to += c * p.out_strides.at[axis];
    from += c * p.x_strides.at[axis];
  });
  V sum = plain_number<V>(0);
  for (int64_t i = 0; i < p.length; ++i) {
    sum = sum + load_plain<V>(p.from, p.x, from + i * p.x_step);
    store_plain<V>(p.to, p.out, to + i * p.out_step, sum);
  }
}

}  // namespace

void map_plainly(GpuOps& ops, const MapCall& call) {
  if (call.out.numel() == 0) return;
  if (is_whole(call.storage())) map_as<Whole>(ops, call, {});
  else map_as<double>(ops, call, {call.number, call.shift});
}

void reduce_plainly(GpuOps& ops, const ReduceCall& call) {
  is_whole(call.x.dtype()) ? reduce_as<Whole>(ops, call) : reduce_as<double>(ops, call);
}

void cumsum_plainly(GpuOps& ops, const Tensor& out, const Tensor& x, int axis) {
  if (x.numel() == 0) return;
  const Tensor lines = x.slice(axis, 0, 1);
  const RunningOperands p{out.raw(),
                          out.dtype(),
                          x.raw(),
                          x.dtype(),
                          Strides(out),
                          Strides(x),
                          Axes8(lines.shape()),
                          divisible("cumsum", lines.numel()),
                          x.dim(axis),
                          out.stride(axis),
                          x.stride(axis)};
  const auto go = [&]<class V>(V) {
    launch_overlapped<running_sums<V>>("cumsum", {grid_for(p.total, kThreads)}, {kThreads}, 0,
                                       ops.stream(), p);
  };
  is_whole(x.dtype()) ? go(Whole{}) : go(double{});
}

}  // namespace plumb::PLUMB_GPU_VENDOR
