// argmax: a row's largest element and its place as one number, so that a maximum of numbers finds
// both. Long rows are shared by several blocks, of which the last to end compares what all found.
#include <algorithm>

#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kLeastPart = 4096;  // elements of a block: 16 a thread

template <class T>
struct RowPlaces {
  const T* x;
  int64_t columns, part;  // elements of a row, of a block's share
  int64_t rows, splits;
  uint64_t* partial;  // [rows, splits]
  unsigned* tickets;  // [rows]; null: there is one split
  int64_t* ids;
  int64_t* log;
  int64_t log_rows;
  const int64_t* past;
};

constexpr uint32_t kNan = ~0u;

// Larger for a larger element and, of equal ones, for an earlier place.
__device__ inline uint64_t ranked(float x, int64_t place) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x + 0.0f);  // -0 is 0
  const uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  return uint64_t{x != x ? kNan : ordered} << 32 | ~static_cast<uint32_t>(place);
}

template <class T, int N>
__device__ uint64_t largest_of_part(const RowPlaces<T>& p, int64_t row, int64_t split) {
  const int64_t begin = split * p.part;
  const int64_t end = begin + p.part < p.columns ? begin + p.part : p.columns;
  const T* x = p.x + row * p.columns;
  uint64_t best = 0;
  for (int64_t i = begin + int64_t{N} * thread_index().x; i < end; i += int64_t{N} * kThreads) {
    const Floats<T, N> element(load_vector<N>(x + i));
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const uint64_t rank = ranked(element[j], i + j);
      if (rank > best) best = rank;
    }
  }
  return best;
}

template <int Wave>
__device__ uint64_t largest_of_block(uint64_t best) {
  struct Found {
    uint64_t of_wave[kThreads / Wave];
  };
  auto& found = block_shared<Found>();
#pragma unroll
  for (int lanes = Wave / 2; lanes > 0; lanes /= 2) {
    const uint64_t other = shuffle_xor<Wave>(best, lanes);
    if (other > best) best = other;
  }
  const unsigned thread = thread_index().x;
  block_barrier();  // what was found before has been read
  if (thread % Wave == 0) found.of_wave[thread / Wave] = best;
  block_barrier();
  for (const uint64_t other : found.of_wave) {
    if (other > best) best = other;
  }
  return best;
}

template <class T, int N, int Wave>
__global__ void __launch_bounds__(kThreads) argmax_rows(RowPlaces<T> p) {
  wait_for_previous_kernel();
  const int64_t row = block_index().x / p.splits, split = block_index().x % p.splits;
  uint64_t best = largest_of_block<Wave>(largest_of_part<T, N>(p, row, split));
  if (p.splits > 1) {
    if (thread_index().x == 0) p.partial[row * p.splits + split] = best;
    if (!last_to_pass(p.tickets + row, static_cast<unsigned>(p.splits))) return;
    best = 0;
    for (int64_t i = thread_index().x; i < p.splits; i += kThreads) {
      const uint64_t other = p.partial[row * p.splits + i];
      if (other > best) best = other;
    }
    best = largest_of_block<Wave>(best);
  }
  if (thread_index().x != 0) return;
  const int64_t place = ~static_cast<uint32_t>(best);
  const bool is_nan = best >> 32 == kNan;
  p.ids[row] = is_nan ? 0 : place;
  p.log[*p.past % p.log_rows * p.rows + row] = is_nan ? -1 - place : place;
}

template <class T, int N>
void run(RowPlaces<T> p, Stream stream) {
  with_wave(stream, [&]<int Wave>() {
    launch_overlapped<argmax_rows<T, N, Wave>>("argmax", {grid_for(p.rows * p.splits, 1)},
                                               {kThreads}, 0, stream, p);
  });
}

}  // namespace

void GpuOps::do_argmax(const Tensor& ids, const Tensor& log, const Tensor& logits,
                       const Position& past) {
  if (logits.numel() == 0) return;
  in_flight_.note({ids, log});
  Arena::Scope scope(arena());
  with_storage("argmax", logits.dtype(), [&]<class T>(T) {
    RowPlaces<T> p{};
    p.x = logits.data<T>();
    p.rows = logits.dim(0);
    p.columns = logits.dim(2);
    const int64_t wanted = (p.columns + kLeastPart - 1) / kLeastPart;
    const int64_t most = std::max<int64_t>(multiprocessors() / p.rows, 1);
    p.part = (p.columns + std::min(wanted, most) - 1) / std::min(wanted, most);
    p.part = (p.part + kVector<T> - 1) / kVector<T> * kVector<T>;
    p.splits = (p.columns + p.part - 1) / p.part;
    if (p.splits > 1) {
      const Shape shape{p.rows, p.splits};
      p.partial = static_cast<uint64_t*>(arena().take(DType::i64, shape).raw());
      p.tickets = tickets(p.rows);
    }
    p.ids = ids.data<int64_t>();
    p.log = log.data<int64_t>();
    p.log_rows = log.dim(0);
    p.past = past.stored.data<int64_t>();
    if (rows_are_vectors(logits)) run<T, kVector<T>>(p, stream());
    else run<T, 1>(p, stream());
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
