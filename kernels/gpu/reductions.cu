// Reductions along any axes, out = R(finish(steps over x)), kernels/ops/reductions.h.
//
// Memory-bound. Some threads of a block, `group`, share a result. Where the last axis is reduced,
// neighbours take neighbouring vectors of 16 bytes; where it is kept, a thread has a vector of
// neighbouring results, and takes every `group`-th of their elements. Where results are few and
// long, `parts` blocks share each, and a second kernel combines their states in order. Who adds
// what is the same where vectors cannot be read, so that a result's bits do not depend on strides.
#include <algorithm>
#include <bit>

#include "kernels/gpu/float_arithmetic.h"
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/plain.h"
#include "kernels/gpu/rows.h"
#include "kernels/ops/reduce_call.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

using reductions::Beside;

constexpr int kThreads = 256;

template <class F>
using StateOf =
    reductions::State<float, std::conditional_t<F::kBeside == Beside::value, float, int32_t>>;

template <class T>
inline constexpr int kVector = 16 / sizeof(T);
constexpr int kAtOnce = 4;  // vectors that a thread waits for together

struct ReduceOperands {
  void* out;  // of T, i64 or bool
  Rows out_rows;
  const void* x;
  Rows kept, reduced;
  int64_t width;   // of a row of results
  Divisor across;  // vectors in it, or results where the last axis is reduced
  Divisor length;  // of a row of a result's elements
  int64_t vectors, results, count;
  int group;
  bool aligned;         // whether vectors can be read
  int64_t parts, part;  // of a result, and elements of each
  void* states;         // [part, result]; null where there is one
};

template <class T, class F>
__device__ void write_result(const ReduceOperands& p, int64_t row, int64_t column,
                             const StateOf<F>& state) {
  const FloatArithmetic<float> m(0, 0);
  const auto y = F::finish(m, state, static_cast<float>(p.count));
  const int64_t offset = p.out_rows.offset(row) + column;
  if constexpr (F::kBeside == Beside::index) static_cast<int64_t*>(p.out)[offset] = y;
  else if constexpr (F::kTakesBools) static_cast<bool*>(p.out)[offset] = y != 0;
  else static_cast<T*>(p.out)[offset] = from_float<T>(y);
}

template <class T, class F>
__device__ void write_state(const ReduceOperands& p, int64_t row, int64_t column,
                            const StateOf<F>& state) {
  if (!p.states) return write_result<T, F>(p, row, column, state);
  const int64_t result = row * p.width + column;
  static_cast<StateOf<F>*>(p.states)[block_index().y * p.results + result] = state;
}

template <class T>
__device__ Vector<T, kVector<T>> some_of(const T* x, int64_t count, bool aligned) {
  if (aligned) return load_vector<kVector<T>>(x);
  Vector<T, kVector<T>> out;
#pragma unroll
  for (int k = 0; k < kVector<T>; ++k) out[k] = x[k < count ? k : 0];
  return out;
}

template <class F>
struct States {
  StateOf<F> of_thread[kThreads];
};

// The last axis is reduced.
template <class T, class F, int Wave>
__global__ void __launch_bounds__(kThreads) reduce_rows(ReduceOperands p) {
  wait_for_previous_kernel();
  constexpr int N = kVector<T>, kShuffled = 32;  // as many threads of a wave
  const FloatArithmetic<float> m(0, 0);
  States<F>& states = block_shared<States<F>>();
  const int thread = static_cast<int>(thread_index().x), lane = thread % p.group;
  const int64_t result = int64_t{block_index().x} * (kThreads / p.group) + thread / p.group;
  const Division at = divide(result < p.results ? result : 0, p.across);
  StateOf<F> state{F::template start<float>(m), 0};
  if (result < p.results) {
    const T* x = static_cast<const T*>(p.x) + p.kept.offset(at.quotient) + at.remainder;
    const int64_t begin = p.part * block_index().y, step = int64_t{p.group} * N;
    const int64_t end = begin + p.part < p.count ? begin + p.part : p.count;
    const auto element = [&](int64_t i) {
      const Division place = divide(i, p.length);
      return x + p.reduced.offset(place.quotient) + place.remainder;
    };
    const auto take = [&](const Vector<T, N>& some, int64_t i) {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        state = F::step(m, state, to_float(some[k]), static_cast<int32_t>(i + k));
      }
    };
    int64_t i = begin + lane * N;
    const int64_t last = p.aligned ? end : 0;  // p.count is whole vectors then
    for (; i + (kAtOnce - 1) * step < last; i += kAtOnce * step) {
      Vector<T, N> some[kAtOnce];
#pragma unroll
      for (int a = 0; a < kAtOnce; ++a) some[a] = load_vector<N>(element(i + a * step));
#pragma unroll
      for (int a = 0; a < kAtOnce; ++a) take(some[a], i + a * step);
    }
    for (; i < last; i += step) take(load_vector<N>(element(i)), i);
    for (; i < end; i += step) {
      for (int k = 0; k < N && i + k < end; ++k) {
        state = F::step(m, state, to_float(*element(i + k)), static_cast<int32_t>(i + k));
      }
    }
  }
  const int together = p.group < kShuffled ? p.group : kShuffled;
  for (int half = together / 2; half > 0; half /= 2) {
    const StateOf<F> other{shuffle_down<Wave>(state.value, half),
                           shuffle_down<Wave>(state.beside, half)};
    if (lane % together < half) state = F::combine(m, state, other);
  }
  if (p.group > kShuffled) {
    states.of_thread[thread] = state;
    block_barrier();
    for (int other = kShuffled; lane == 0 && other < p.group; other += kShuffled) {
      state = F::combine(m, state, states.of_thread[thread + other]);
    }
  }
  if (lane == 0 && result < p.results) write_state<T, F>(p, at.quotient, at.remainder, state);
}

template <class F, int N>
struct ColumnStates {
  StateOf<F> of_thread[kThreads * N];
};

// The last axis is kept.
template <class T, class F>
__global__ void __launch_bounds__(kThreads) reduce_columns(ReduceOperands p) {
  wait_for_previous_kernel();
  constexpr int N = kVector<T>;
  const FloatArithmetic<float> m(0, 0);
  auto& states = block_shared<ColumnStates<F, N>>();
  const int thread = static_cast<int>(thread_index().x), across = kThreads / p.group;
  const int lane = thread / across;
  const int64_t vector = int64_t{block_index().x} * across + thread % across;
  const Division at = divide(vector < p.vectors ? vector : 0, p.across);
  const int64_t column = int64_t{at.remainder} * N, own = p.width - column;
  StateOf<F> state[N];
#pragma unroll
  for (int k = 0; k < N; ++k) state[k] = {F::template start<float>(m), 0};
  if (vector < p.vectors) {
    const T* x = static_cast<const T*>(p.x) + p.kept.offset(at.quotient) + column;
    const int64_t begin = p.part * block_index().y;
    const int64_t end = begin + p.part < p.count ? begin + p.part : p.count;
    const auto elements = [&](int64_t i) {
      const Division place = divide(i, p.length);
      return some_of(x + p.reduced.offset(place.quotient) + place.remainder, own, p.aligned);
    };
    const auto take = [&](const Vector<T, N>& some, int64_t i) {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        state[k] = F::step(m, state[k], to_float(some[k]), static_cast<int32_t>(i));
      }
    };
    int64_t i = begin + lane;
    for (; i + (kAtOnce - 1) * p.group < end; i += kAtOnce * p.group) {
      Vector<T, N> some[kAtOnce];
#pragma unroll
      for (int a = 0; a < kAtOnce; ++a) some[a] = elements(i + a * p.group);
#pragma unroll
      for (int a = 0; a < kAtOnce; ++a) take(some[a], i + a * p.group);
    }
    for (; i < end; i += p.group) take(elements(i), i);
  }
  for (int k = 0; k < N; ++k) states.of_thread[k * kThreads + thread] = state[k];
  for (int half = p.group / 2; half > 0; half /= 2) {
    block_barrier();
    if (lane >= half) continue;
    for (int k = 0; k < N; ++k) {
      const int place = k * kThreads + thread;
      states.of_thread[place] =
          F::combine(m, states.of_thread[place], states.of_thread[place + half * across]);
    }
  }
  if (lane > 0 || vector >= p.vectors) return;
  for (int k = 0; k < N && k < own; ++k) {
    write_state<T, F>(p, at.quotient, column + k, states.of_thread[k * kThreads + thread]);
  }
}

template <class T, class F>
__global__ void __launch_bounds__(kThreads) combine_parts(ReduceOperands p, Divisor width) {
  wait_for_previous_kernel();
  const FloatArithmetic<float> m(0, 0);
  const int64_t result = int64_t{kThreads} * block_index().x + thread_index().x;
  if (result >= p.results) return;
  const auto* states = static_cast<const StateOf<F>*>(p.states) + result;
  StateOf<F> state = states[0];
  for (int64_t part = 1; part < p.parts; ++part) {
    state = F::combine(m, state, states[part * p.results]);
  }
  const Division at = divide(result, width);
  write_result<T, F>(p, at.quotient, at.remainder, state);
}

template <class T, class F>
void reduce_as(GpuOps& ops, const ReduceCall& call) {
  constexpr int N = kVector<T>;
  const char* op = call.row.name;
  const Tensor kept = call.kept(), reduced = call.reduced();
  const bool along_rows = call.axes.has(call.x.rank() - 1) || call.x.dim(-1) == 1;
  ReduceOperands p{};
  p.out = call.out.raw();
  p.out_rows = rows_of(op, call.out);
  p.x = call.x.raw();
  p.kept = rows_of(op, kept);
  p.width = call.out.dim(-1);
  const int64_t across = along_rows ? p.width : (p.width + N - 1) / N;
  p.across = Divisor(across);
  p.results = divisible(op, call.out.numel());
  p.vectors = p.results / p.width * across;
  p.count = divisible(op, call.count);
  if (call.count > 0) {
    p.reduced = rows_of(op, reduced);
    p.length = Divisor(reduced.dim(-1));
    p.aligned = rows_are_vectors(call.x);
  }
  // Elements, or rows of vectors, of a thread before another helps it; columns have a wave's width.
  const int64_t own = along_rows ? kAtOnce * N : 8, most = along_rows ? kThreads : kThreads / 32;
  p.group = static_cast<int>(
      std::bit_floor(static_cast<uint64_t>(std::clamp<int64_t>(p.count / own, 1, most))));
  const unsigned blocks = grid_for(p.vectors, kThreads / p.group);
  const int64_t idle = 4 * ops.multiprocessors() / blocks, shares = p.count / (p.group * own * 2);
  p.parts = std::max<int64_t>(1, std::min(idle, shares));
  p.part = (p.count + p.parts * N - 1) / (p.parts * N) * N;
  Arena::Scope scope(ops.arena());
  if (p.parts > 1) {
    constexpr auto size = static_cast<int64_t>(sizeof(StateOf<F>));
    p.states = ops.arena().take(DType::u8, {p.results * p.parts * size}).raw();
  }
  const Dim grid{blocks, static_cast<unsigned>(p.parts)};
  if (along_rows) {
    with_wave(ops.stream(), [&]<int Wave>() {
      launch_overlapped<reduce_rows<T, F, Wave>>(op, grid, {kThreads}, 0, ops.stream(), p);
    });
  } else {
    launch_overlapped<reduce_columns<T, F>>(op, grid, {kThreads}, 0, ops.stream(), p);
  }
  if (p.parts == 1) return;
  launch_overlapped<combine_parts<T, F>>(op, {grid_for(p.results, kThreads)}, {kThreads}, 0,
                                         ops.stream(), p, Divisor(p.width));
}

}  // namespace

void GpuOps::do_reduce(const ReduceCall& call) {
  if (call.out.numel() == 0) return;
  const bool of_bools = call.x.dtype() == DType::boolean && takes_bools(call.row.id);
  if (computes_plainly(call.x.dtype()) && !of_bools) return reduce_plainly(*this, call);
  with_reduction(call.reduction(), [&]<class F>() {
    if constexpr (F::kTakesBools) {
      if (call.x.dtype() == DType::boolean) return reduce_as<bool, F>(*this, call);
    }
    with_storage(call.row.name, call.x.dtype(), [&]<class T>(T) { reduce_as<T, F>(*this, call); });
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
