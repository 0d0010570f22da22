// RMSNorm of contiguous rows as a GPU plugin, one source for CUDA and for the emulated GPU: a block
// owns a row and adds up its squares in shared memory. BARRIER=0 leaves out the barrier before the
// sums are read: a race.
//
//   nvcc $(harness plugin-flags --device cuda:0) -DBARRIER=1 gpu_rms_norm.cu -o my_norm.so
#include <cstdio>

#include "kernels/gpu/gpu.h"
#include "kernels/plugin.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 128;

struct Squares {
  float of[kThreads];
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    norm_rows(T* out, const T* x, const T* weight, int64_t columns, float eps, float offset,
              bool round_before) {
  Squares& squares = block_shared<Squares>();
  const int t = static_cast<int>(thread_index().x);
  const int64_t start = int64_t{block_index().x} * columns;
  float own = 0;
  for (int64_t c = t; c < columns; c += kThreads) {
    const float v = to_float(x[start + c]);
    own += v * v;
  }
  squares.of[t] = own;
  if (BARRIER) block_barrier();
  float total = 0;
  for (int i = 0; i < kThreads; ++i) total += squares.of[i];
  const float factor = reciprocal_sqrt(total / static_cast<float>(columns) + eps);
  for (int64_t c = t; c < columns; c += kThreads) {
    float n = to_float(x[start + c]) * factor;
    if (round_before) n = rounded<T>(n);
    out[start + c] = from_float<T>((offset + to_float(weight[c])) * n);
  }
}

bool contiguous(const plumb_tensor& t) {
  int64_t stride = 1;
  for (int axis = t.rank - 1; axis >= 0; --axis) {
    if (t.shape[axis] != 1 && t.stride[axis] != stride) return false;
    stride *= t.shape[axis];
  }
  return true;
}

template <class T>
void norm(const plumb_call& call) {
  const plumb_tensor &out = call.tensors[0], &x = call.tensors[1], &weight = call.tensors[2];
  int64_t rows = 1;
  for (int axis = 0; axis + 1 < x.rank; ++axis) rows *= x.shape[axis];
  if (rows == 0) return;
  launch<norm_rows<T>>(
      "rms_norm", {static_cast<unsigned>(rows)}, {kThreads}, 0, static_cast<Stream>(call.stream),
      static_cast<T*>(out.data), static_cast<const T*>(x.data), static_cast<const T*>(weight.data),
      x.shape[x.rank - 1], static_cast<float>(call.params.eps),
      static_cast<float>(call.params.weight_offset), call.params.weight_after_rounding != 0);
}

int rms_norm(const plumb_call* call) {
  try {  // launch() throws; nothing may leave a plugin
    if (!contiguous(call->tensors[0]) || !contiguous(call->tensors[1])) return PLUMB_UNSUPPORTED;
    switch (call->tensors[1].dtype) {
      case PLUMB_F32: norm<float>(*call); return PLUMB_OK;
      case PLUMB_F16: norm<Float16>(*call); return PLUMB_OK;
      case PLUMB_BF16: norm<BFloat16>(*call); return PLUMB_OK;
      default: return PLUMB_UNSUPPORTED;
    }
  } catch (const std::exception& error) {
    std::snprintf(call->error, static_cast<size_t>(call->error_bytes), "%s", error.what());
    return PLUMB_FAILED;
  }
}

}  // namespace
}  // namespace plumb::PLUMB_GPU_VENDOR

extern "C" const plumb_plugin* plumb_plugin_entry() {
  static const plumb_op ops[] = {{"rms_norm", plumb::PLUMB_GPU_VENDOR::rms_norm, {24, 0, 0}}};
  static const plumb_plugin plugin = {
      PLUMB_PLUGIN_VERSION, "gpu_norm", PLUMB_DEVICE, nullptr, 1, ops};
  return &plugin;
}
