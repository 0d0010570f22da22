// softmax over the last axis: R(exp(x - max) / sum). A row of minus infinity gives zeros.
//
// A wave owns a row and reads it three times, from cache after the first: this is the composed
// path, where the scores exist anyway; attention in one go is sdpa.cu.
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kWaves = 4;  // rows per block

template <class T, int Wave>
__global__ void __launch_bounds__(kWaves* Wave)
    softmax_rows(T* out, Rows out_rows, const T* x, Rows x_rows, int64_t columns) {
  const int lane = static_cast<int>(thread_index().x) % Wave;
  const int64_t first = int64_t{block_index().x} * kWaves + thread_index().x / Wave;
  for (int64_t row = first; row < x_rows.count; row += int64_t{grid_size().x} * kWaves) {
    const T* in = x + x_rows.offset(row);
    T* to = out + out_rows.offset(row);
    float largest = -INFINITY;
    for (int64_t c = lane; c < columns; c += Wave) {
      const float v = to_float(in[c]);
      largest = v > largest || v != v ? v : largest;
    }
    largest = warp_max<Wave>(largest);
    // Nothing to subtract from a row of minus infinity: exp(-inf - 0) = 0 for every element.
    const float shift = largest == -INFINITY ? 0.0f : largest;
    float sum = 0;
    for (int64_t c = lane; c < columns; c += Wave) sum += expf(to_float(in[c]) - shift);
    sum = warp_sum<Wave>(sum);
    const float divisor = sum == 0 ? 1.0f : sum;
    for (int64_t c = lane; c < columns; c += Wave) {
      to[c] = from_float<T>(expf(to_float(in[c]) - shift) / divisor);
    }
  }
}

}  // namespace

void GpuOps::do_softmax(const Tensor& out, const Tensor& x) {
  if (x.numel() == 0) return;
  settle_for("rows");
  with_storage("softmax", x.dtype(), [&]<class T>(T) {
    const Rows to = rows_of("softmax", out), from = rows_of("softmax", x);
    with_wave(stream(), [&]<int Wave>() {
      launch<softmax_rows<T, Wave>>("softmax", {grid_for(from.count, kWaves)}, {kWaves * Wave}, 0,
                                    stream(), out.data<T>(), to, static_cast<const T*>(x.data<T>()),
                                    from, x.dim(-1));
    });
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
