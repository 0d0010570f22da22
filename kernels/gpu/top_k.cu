// top_k: a block owns a row. Elements are numbers in their order, value and place, all different
// (kernels/ops/order.h): eight bits at a time, from the top, counts say where the k-th is. Those
// above it are put aside in any order, and each is written where as many are above it.
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/rows.h"
#include "kernels/ops/order.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256;  // one for each count

template <class T>
struct TopOperands {
  T* values;
  Rows values_rows;
  int64_t* ids;
  Rows ids_rows;
  const T* x;
  Rows x_rows;
  int width, k;
  bool largest;
  uint64_t* chosen;  // [row, k]
};

struct Counts {
  int of[kThreads];
  int left;        // of the k, among those that agree with `above` so far
  uint64_t above;  // the digits that are known
  bool complete;   // all that agree are among the k
  int put_aside;
};

template <class T>
__global__ void __launch_bounds__(kThreads) choose_top(TopOperands<T> p) {
  wait_for_previous_kernel();
  Counts& counts = block_shared<Counts>();
  const int64_t row = block_index().x;
  const int thread = static_cast<int>(thread_index().x);
  const T* x = p.x + p.x_rows.offset(row);
  const auto rank = [&](int i) { return order::rank(to_float(x[i]), i, p.largest); };
  if (thread == 0) {
    counts.left = p.k;
    counts.above = 0;
    counts.complete = false;
    counts.put_aside = 0;
  }
  int shift = 64;
  bool complete = false;
  while (shift > 0 && !complete) {
    shift -= 8;
    counts.of[thread] = 0;
    block_barrier();
    const uint64_t above = counts.above;
    for (int i = thread; i < p.width; i += kThreads) {
      const uint64_t r = rank(i);
      const bool agrees = shift == 56 || r >> (shift + 8) == above >> (shift + 8);
      if (agrees) atomic_add(&counts.of[(r >> shift) & 255], 1);
    }
    block_barrier();
    if (thread == 0) {
      int digit = 255;
      while (counts.of[digit] < counts.left) counts.left -= counts.of[digit--];
      counts.above |= static_cast<uint64_t>(digit) << shift;
      counts.complete = counts.of[digit] == counts.left;
    }
    block_barrier();
    complete = counts.complete;
  }
  uint64_t* chosen = p.chosen + row * p.k;
  for (int i = thread; i < p.width; i += kThreads) {
    const uint64_t r = rank(i);
    if (r >= counts.above) chosen[atomic_add(&counts.put_aside, 1)] = r;
  }
  block_barrier();
  T* values = p.values + p.values_rows.offset(row);
  int64_t* ids = p.ids + p.ids_rows.offset(row);
  for (int i = thread; i < p.k; i += kThreads) {
    const uint64_t r = chosen[i];
    int before = 0;
    for (int j = 0; j < p.k; ++j) before += chosen[j] > r;
    const int64_t place = order::place(r);
    values[before] = x[place];
    ids[before] = place;
  }
}

}  // namespace

void GpuOps::do_top_k(const Tensor& values, const Tensor& ids, const Tensor& x, bool largest) {
  if (values.numel() == 0) return;
  with_storage("top_k", x.dtype(), [&]<class T>(T) {
    Arena::Scope scope(arena());
    const TopOperands<T> p{values.data<T>(),
                           rows_of("top_k", values),
                           ids.data<int64_t>(),
                           rows_of("top_k", ids),
                           x.data<T>(),
                           rows_of("top_k", x),
                           static_cast<int>(divisible("top_k", x.dim(-1))),
                           static_cast<int>(values.dim(-1)),
                           largest,
                           arena().take(DType::i64, {values.numel()}).data<uint64_t>()};
    launch_overlapped<choose_top<T>>("top_k", {grid_of_rows("top_k", p.x_rows.count)}, {kThreads},
                                     0, stream(), p);
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
