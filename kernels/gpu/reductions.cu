// Reductions along any axes, out = R(finish(steps over x)), kernels/ops/reductions.h.
//
// Memory-bound. Some neighbouring threads of a block, `group`, share a result where the last axis
// is reduced: each takes the element next to its neighbour's, so that they read along rows. Where
// it is kept, neighbouring threads have neighbouring results, and the threads of a result are
// apart. Their states are combined in halves. Where results are few and long, `parts` blocks share
// each, and a second kernel combines their states in order.
#include <algorithm>
#include <bit>

#include "kernels/gpu/float_arithmetic.h"
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/rows.h"
#include "kernels/ops/reduce_call.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

using reductions::Beside;

constexpr int kThreads = 256;

template <class F>
using StateOf =
    reductions::State<float, std::conditional_t<F::kBeside == Beside::value, float, int32_t>>;

struct ReduceOperands {
  void* out;  // of T, i64 or bool
  Rows out_rows;
  const void* x;
  Rows kept, reduced;
  Divisor width, length;  // of a row of results, and of one of the elements of a result
  int64_t results, count;
  int group;
  bool along_rows;
  int64_t parts, part;  // of a result, and elements of each
  void* states;         // [result, part]; null where there is one
};

template <class T, class F>
__device__ void write_result(const ReduceOperands& p, int64_t result, const StateOf<F>& state) {
  const FloatArithmetic<float> m(0, 0);
  const auto y = F::finish(m, state, static_cast<float>(p.count));
  const Division at = divide(result, p.width);
  const int64_t offset = p.out_rows.offset(at.quotient) + at.remainder;
  if constexpr (F::kBeside == Beside::index) static_cast<int64_t*>(p.out)[offset] = y;
  else if constexpr (F::kTakesBools) static_cast<bool*>(p.out)[offset] = y != 0;
  else static_cast<T*>(p.out)[offset] = from_float<T>(y);
}

template <class F>
struct States {
  StateOf<F> of_thread[kThreads];
};

template <class T, class F>
__global__ void __launch_bounds__(kThreads) reduce_parts(ReduceOperands p) {
  wait_for_previous_kernel();
  const FloatArithmetic<float> m(0, 0);
  States<F>& states = block_shared<States<F>>();
  const int thread = static_cast<int>(thread_index().x), across = kThreads / p.group;
  const int own = p.along_rows ? thread / p.group : thread % across;
  const int lane = p.along_rows ? thread % p.group : thread / across;
  const int64_t result = int64_t{block_index().x} * across + own;
  StateOf<F> state{F::template start<float>(m), 0};
  if (result < p.results) {
    const Division at = divide(result, p.width);
    const T* x = static_cast<const T*>(p.x) + p.kept.offset(at.quotient) + at.remainder;
    const int64_t begin = p.part * block_index().y;
    const int64_t end = begin + p.part < p.count ? begin + p.part : p.count;
    for (int64_t i = begin + lane; i < end; i += p.group) {
      const Division place = divide(i, p.length);
      const T element = x[p.reduced.offset(place.quotient) + place.remainder];
      state = F::step(m, state, to_float(element), static_cast<int32_t>(i));
    }
  }
  states.of_thread[thread] = state;
  for (int half = p.group / 2; half > 0; half /= 2) {
    block_barrier();
    if (lane >= half) continue;
    const int other = thread + (p.along_rows ? half : half * across);
    states.of_thread[thread] = F::combine(m, states.of_thread[thread], states.of_thread[other]);
  }
  if (lane > 0 || result >= p.results) return;
  if (p.states) {
    static_cast<StateOf<F>*>(p.states)[result * p.parts + block_index().y] =
        states.of_thread[thread];
  } else {
    write_result<T, F>(p, result, states.of_thread[thread]);
  }
}

template <class T, class F>
__global__ void __launch_bounds__(kThreads) combine_parts(ReduceOperands p) {
  wait_for_previous_kernel();
  const FloatArithmetic<float> m(0, 0);
  const int64_t result = int64_t{kThreads} * block_index().x + thread_index().x;
  if (result >= p.results) return;
  const auto* states = static_cast<const StateOf<F>*>(p.states) + result * p.parts;
  StateOf<F> state = states[0];
  for (int64_t part = 1; part < p.parts; ++part) state = F::combine(m, state, states[part]);
  write_result<T, F>(p, result, state);
}

template <class T, class F>
void reduce_as(GpuOps& ops, const ReduceCall& call) {
  constexpr int64_t kOwn = 8;  // elements of a thread before another helps it
  const char* op = call.row.name;
  const Tensor kept = call.kept(), reduced = call.reduced();
  ReduceOperands p{};
  p.out = call.out.raw();
  p.out_rows = rows_of(op, call.out);
  p.x = call.x.raw();
  p.kept = rows_of(op, kept);
  p.along_rows = call.axes.has(call.x.rank() - 1);
  p.width = Divisor(call.out.dim(-1));
  p.results = divisible(op, call.out.numel());
  p.count = divisible(op, call.count);
  if (call.count > 0) {
    p.reduced = rows_of(op, reduced);
    p.length = Divisor(reduced.dim(-1));
  }
  // Of columns a wave reads 32 neighbours.
  const int64_t most = p.along_rows ? kThreads : kThreads / 32;
  p.group = static_cast<int>(
      std::bit_floor(static_cast<uint64_t>(std::clamp<int64_t>(p.count / kOwn, 1, most))));
  const unsigned blocks = grid_for(p.results, kThreads / p.group);
  const int64_t idle = 4 * ops.multiprocessors() / blocks, shares = p.count / (p.group * kOwn * 4);
  p.parts = std::max<int64_t>(1, std::min(idle, shares));
  p.part = (p.count + p.parts - 1) / p.parts;
  Arena::Scope scope(ops.arena());
  if (p.parts > 1) {
    constexpr auto size = static_cast<int64_t>(sizeof(StateOf<F>));
    p.states = ops.arena().take(DType::u8, {p.results * p.parts * size}).raw();
  }
  launch_overlapped<reduce_parts<T, F>>(op, {blocks, static_cast<unsigned>(p.parts)}, {kThreads}, 0,
                                        ops.stream(), p);
  if (p.parts == 1) return;
  launch_overlapped<combine_parts<T, F>>(op, {grid_for(p.results, kThreads)}, {kThreads}, 0,
                                         ops.stream(), p);
}

}  // namespace

void GpuOps::do_reduce(const ReduceCall& call) {
  if (call.out.numel() == 0) return;
  with_reduction(call.reduction(), [&]<class F>() {
    if constexpr (F::kTakesBools) {
      if (call.x.dtype() == DType::boolean) return reduce_as<bool, F>(*this, call);
    }
    with_storage(call.row.name, call.x.dtype(), [&]<class T>(T) { reduce_as<T, F>(*this, call); });
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
