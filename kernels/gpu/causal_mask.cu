// causal_mask: which keys a query may see, as a tensor. A block owns a row of the output, a thread
// 16 bytes of it at a time.
#include <algorithm>

#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/mask.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kMaskThreads = 128;  // of a block, which owns a row: what depends on the query alone
                                   // is computed once

template <class T, int N>
__global__ void __launch_bounds__(kMaskThreads)
    causal_mask_rows(T* out, Rows out_rows, Divisor heads, Divisor queries, int keys, MaskView mask,
                     T allowed, T masked) {
  wait_for_previous_kernel();
  const bool ranges_only = !mask.explicit_bool && !mask.key_valid;
  for (int64_t row = block_index().x; row < out_rows.count; row += grid_size().x) {
    const Division by_query = divide(row, queries), by_head = divide(by_query.quotient, heads);
    const int64_t t = by_query.remainder;
    const int first = static_cast<int>(mask.first_key(t) < keys ? mask.first_key(t) : keys);
    const int last = static_cast<int>(mask.last_key(t, keys));
    T* to = out + out_rows.offset(row);
    const int step = static_cast<int>(block_size().x) * N;
#pragma unroll 4
    for (int key = static_cast<int>(thread_index().x) * N; key < keys; key += step) {
      Vector<T, N> y;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const bool may =
            key + k >= first && key + k < last &&
            (ranges_only || mask.allows(by_head.quotient, by_head.remainder, t, key + k));
        y[k] = may ? allowed : masked;
      }
      store_elements(to + key, y);
    }
  }
}

}  // namespace

void GpuOps::do_causal_mask(const Tensor& out, const AttentionMask& mask) {
  if (out.numel() == 0) return;
  const MaskView view = mask_view(mask);
  constexpr int64_t kMostKeys = int64_t{1} << 30;
  require<Unsupported>(out.dim(3) <= kMostKeys, "causal_mask", out.dim(3), " keys, at most ",
                       kMostKeys, " are implemented");
  const Rows rows = rows_of("causal_mask", out);
  const std::string_view variant = out.dtype() == DType::boolean ? "bool" : "additive";
  const auto go = [&]<class T>(T allowed, T masked) {
    const auto with_width = [&]<int N>() {
      const int64_t vectors = out.dim(3) / N;
      const auto threads =
          static_cast<unsigned>(std::min<int64_t>((vectors + 63) / 64 * 64, kMaskThreads));
      launch_overlapped<causal_mask_rows<T, N>>(
          "causal_mask", {grid_for(divisible("causal_mask", rows.count), 1)}, {threads}, 0,
          stream(), out.data<T>(), rows, Divisor(out.dim(1)), Divisor(out.dim(2)),
          static_cast<int>(out.dim(3)), view, allowed, masked);
    };
    if (rows_are_vectors(out) && choose("vectors", variant)) {
      return with_width.template operator()<kVector<T>>();
    }
    settle_for("scalars", variant);
    with_width.template operator()<1>();
  };
  if (out.dtype() == DType::boolean) return go(uint8_t{1}, uint8_t{0});
  with_storage("causal_mask", out.dtype(), [&]<class T>(T) {
    const bool infinite = mask.fully_masked == FullyMasked::zero;
    const double lowest = -info(out.dtype()).max;
    go(from_float<T>(0.0f), from_float<T>(infinite ? -INFINITY : static_cast<float>(lowest)));
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
