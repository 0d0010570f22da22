// top_k: a block owns a row. Elements are numbers in their order, value and place, all different
// (kernels/ops/order.h), wider ones of f64 and whole numbers: eight bits at a time, from the top,
// counts say where the k-th is. Those above it are put aside in any order, and each is written
// where as many are above it.
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
  void* chosen;  // ranks [row, k]
};

// As the order has them.
template <class T>
__device__ auto key_of(T x) {
  if constexpr (std::is_same_v<T, double>) return x;
  else if constexpr (std::is_integral_v<T>) return static_cast<int64_t>(x);
  else return to_float(x);
}
template <class T>
using RankOf =
    std::conditional_t<std::is_same_v<T, double> || std::is_integral_v<T>, order::Wide, uint64_t>;

template <class Rank>
struct Counts {
  int of[kThreads];
  int left;       // of the k, among those that agree with `above` so far
  Rank above;     // the digits that are known
  bool complete;  // all that agree are among the k
  int put_aside;
};

template <class T>
__global__ void __launch_bounds__(kThreads) choose_top(TopOperands<T> p) {
  wait_for_previous_kernel();
  using Rank = RankOf<T>;
  // Value and place.
  constexpr int kBits = std::is_same_v<Rank, uint64_t> ? 64 : 96;
  auto& counts = block_shared<Counts<Rank>>();
  const int64_t row = block_index().x;
  const int thread = static_cast<int>(thread_index().x);
  const T* x = p.x + p.x_rows.offset(row);
  const auto rank = [&](int i) { return order::rank(key_of(x[i]), i, p.largest); };
  if (thread == 0) {
    counts.left = p.k;
    counts.above = 0;
    counts.complete = false;
    counts.put_aside = 0;
  }
  int shift = kBits;
  bool complete = false;
  while (shift > 0 && !complete) {
    shift -= 8;
    counts.of[thread] = 0;
    block_barrier();
    const Rank above = counts.above;
    for (int i = thread; i < p.width; i += kThreads) {
      const Rank r = rank(i);
      const bool agrees = shift == kBits - 8 || r >> (shift + 8) == above >> (shift + 8);
      if (agrees) atomic_add(&counts.of[static_cast<int>((r >> shift) & 255)], 1);
    }
    block_barrier();
    if (thread == 0) {
      int digit = 255;
      while (counts.of[digit] < counts.left) counts.left -= counts.of[digit--];
      counts.above |= static_cast<Rank>(digit) << shift;
      counts.complete = counts.of[digit] == counts.left;
    }
    block_barrier();
    complete = counts.complete;
  }
  Rank* chosen = static_cast<Rank*>(p.chosen) + row * p.k;
  for (int i = thread; i < p.width; i += kThreads) {
    const Rank r = rank(i);
    if (r >= counts.above) chosen[atomic_add(&counts.put_aside, 1)] = r;
  }
  block_barrier();
  T* values = p.values + p.values_rows.offset(row);
  int64_t* ids = p.ids + p.ids_rows.offset(row);
  for (int i = thread; i < p.k; i += kThreads) {
    const Rank r = chosen[i];
    int before = 0;
    for (int j = 0; j < p.k; ++j) before += chosen[j] > r;
    const int64_t place = order::place(r);
    values[before] = x[place];
    ids[before] = place;
  }
}

template <class F>
void with_elements(DType dtype, F f) {
  switch (dtype) {
    case DType::f64: return f(double{});
    case DType::i64: return f(int64_t{});
    case DType::i32: return f(int32_t{});
    case DType::u32: return f(uint32_t{});
    case DType::u8: return f(uint8_t{});
    default: return with_storage("top_k", dtype, f);
  }
}

}  // namespace

void GpuOps::do_top_k(const Tensor& values, const Tensor& ids, const Tensor& x, bool largest) {
  if (values.numel() == 0) return;
  with_elements(x.dtype(), [&]<class T>(T) {
    constexpr auto kRank = static_cast<int64_t>(sizeof(RankOf<T>));
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
                           arena().take(DType::u8, {values.numel() * kRank}).raw()};
    launch_overlapped<choose_top<T>>("top_k", {grid_of_rows("top_k", p.x_rows.count)}, {kThreads},
                                     0, stream(), p);
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
