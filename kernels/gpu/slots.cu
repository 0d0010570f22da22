// store_tokens and advance: the position of a sequence is in device memory. A thread moves 16
// bytes of a key or a value (one element where alignment forbids more), with a window to both of
// its slots.
#include <algorithm>

#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 128;

template <class T>
struct StoreOperands {
  T* slots[2];  // of keys, of values
  const T* from[2];
  int64_t slot_stride[2][3], from_stride[2][3];  // batch, head, token
  const int64_t* past;
  int64_t capacity, window;  // in slots; window 0: none
  int64_t skipped;           // tokens that the window leaves out
  Divisor tokens, heads, width;
  int64_t total;  // vectors of keys
};

template <class T, int N>
__global__ void __launch_bounds__(kThreads) store_rows(StoreOperands<T> p) {
  wait_for_previous_kernel();
  const int64_t past = *p.past, step = int64_t{kThreads} * grid_size().x;
  for (int64_t i = int64_t{kThreads} * block_index().x + thread_index().x; i < 2 * p.total;
       i += step) {
    const int which = i < p.total ? 0 : 1;
    const Division row = divide(which == 0 ? i : i - p.total, p.width);
    const Division by_token = divide(row.quotient, p.tokens);
    const Division by_head = divide(by_token.quotient, p.heads);
    const int64_t token = p.skipped + by_token.remainder, column = row.remainder * N;
    const int64_t position = past + token;
    const auto at = [&](const int64_t(&stride)[3], int64_t t) {
      return by_head.quotient * stride[0] + by_head.remainder * stride[1] + t * stride[2] + column;
    };
    const auto x = load_vector<N>(p.from[which] + at(p.from_stride[which], token));
    const auto store = [&](int64_t slot) {
      if (slot < p.capacity) store_vector(p.slots[which] + at(p.slot_stride[which], slot), x);
    };
    if (p.window == 0) {
      store(position);
    } else {
      const int64_t slot = static_cast<uint32_t>(position) % static_cast<uint32_t>(p.window);
      store(slot);
      store(p.window + slot);
    }
  }
}

__global__ void add_to_position(int64_t* position, int64_t tokens) {
  wait_for_previous_kernel();
  *position += tokens;
}

template <class T>
void store(const Tensor (&slots)[2], const Tensor (&from)[2], const Tensor& past, int64_t window,
           Stream stream) {
  StoreOperands<T> p{};
  for (int i = 0; i < 2; ++i) {
    p.slots[i] = static_cast<T*>(slots[i].raw());
    p.from[i] = static_cast<const T*>(from[i].raw());
    for (int axis = 0; axis < 3; ++axis) {
      p.slot_stride[i][axis] = slots[i].stride(axis);
      p.from_stride[i][axis] = from[i].stride(axis);
    }
  }
  const int64_t tokens = from[0].dim(2);
  p.past = past.data<int64_t>();
  p.capacity = slots[0].dim(2);
  p.window = window;
  p.skipped = window > 0 ? std::max<int64_t>(tokens - window, 0) : 0;
  p.tokens = Divisor(tokens - p.skipped);
  p.heads = Divisor(from[0].dim(1));
  const auto go = [&]<int N>() {
    p.width = Divisor(from[0].dim(3) / N);
    p.total = from[0].dim(0) * from[0].dim(1) * (tokens - p.skipped) * p.width.value();
    launch_overlapped<store_rows<T, N>>("store_tokens", {grid_for(2 * p.total, kThreads)},
                                        {kThreads}, 0, stream, p);
  };
  const auto all = {slots[0], slots[1], from[0], from[1]};
  const bool vectors = std::all_of(all.begin(), all.end(), rows_are_vectors);
  if (vectors) go.template operator()<kVector<T>>();
  else go.template operator()<1>();
}

}  // namespace

void GpuOps::do_store_tokens(const Tensor& key_slots, const Tensor& value_slots, const Tensor& k,
                             const Tensor& v, const Position& past, std::optional<int64_t> window) {
  if (k.numel() == 0) return;
  require<Unsupported>(v.dim(3) == k.dim(3), "store_tokens", "values of ", v.dim(3),
                       " channels with keys of ", k.dim(3));
  in_flight_.note({key_slots, value_slots});
  if (held_.store(key_slots, value_slots, k, v, past.stored, window.value_or(0))) return;
  const auto go = [&]<class T>(T) {
    store<T>({key_slots, value_slots}, {k, v}, past.stored, window.value_or(0), stream());
  };
  if (size_of(k.dtype()) == 4) go(uint32_t{});
  else go(uint16_t{});
}

void GpuOps::do_advance(const Position& past, int64_t tokens) {
  in_flight_.note({past.stored});
  launch_overlapped<add_to_position>("advance", {1}, {1}, 0, stream(), past.stored.data<int64_t>(),
                                     tokens);
}

}  // namespace plumb::PLUMB_GPU_VENDOR
