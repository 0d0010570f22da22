// The ways in which CUDA files write launches and shared memory: each adds an eighth of the
// elements.
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <climits>

#include "kernels/plugin.h"

// kernel<<<in, a, comment>>>();
static const char* const text =
    "kernel<<<1, 2>>>(\"x\")"
    R"(kernel<<<1>>>())";
#define LAUNCH(kernel, n, ...) kernel<<<dim3((n + 63) / 64), 64>>>(__VA_ARGS__)
#define WIDTH 64

__constant__ float one_of[1];

struct Part {
  int which, count;
};

__device__ __forceinline__ bool mine(Part part, int i) {
  return i < part.count && i % 8 == part.which;
}

__global__ void __launch_bounds__(WIDTH)
    static_arrays(float* out, const float* a, const float* b, Part part) {
  __shared__ __align__(16) float left[WIDTH], right[WIDTH];
  __shared__ float2 pairs[2][WIDTH / 2];
  volatile __shared__ int last;
  const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  left[t] = i < part.count ? a[i] : 0.f;
  right[t] = i < part.count ? b[i] : 0.f;
  if (t == WIDTH - 1) last = 1'000;
  __syncthreads();
  if (t < WIDTH / 2) pairs[0][t] = make_float2(left[t], right[t]);
  else pairs[1][t - WIDTH / 2] = make_float2(left[t], right[t]);
  __syncthreads();
  const float2 pair = pairs[t / (WIDTH / 2)][t % (WIDTH / 2)];
  if (mine(part, i) && last == 1000) out[i] = (pair.x + pair.y) * one_of[0];
}

namespace outer {
namespace inner {
template <typename T, int Threads>
__global__ void templated(T* out, const T* a, const T* b, Part part) {
  extern __shared__ __align__(16) unsigned char memory[];
  T* sums = reinterpret_cast<T*>(memory);
  __shared__ T own[Threads + 1][2];
  const int t = threadIdx.x, i = blockIdx.x * Threads + t;
  own[t][0] = own[t][1] = 0;
  if (i < part.count) own[t][1] = a[i];
  sums[t] = own[t][1] + (i < part.count ? b[i] : T(0));
  __syncwarp();
  if (mine(part, i)) out[i] = sums[t];
}
}  // namespace inner
}  // namespace outer

extern __shared__ float at_file_scope[];

template <typename T>
__global__ void deduced(T* out, const T* a, const T* b, Part part) {
  namespace cg = cooperative_groups;
  cg::thread_block block = cg::this_thread_block();
  auto tile = cg::tiled_partition<16>(block);
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  at_file_scope[threadIdx.x] = i < part.count ? a[i] : T(0);
  block.sync();
  const T same = tile.shfl_xor(tile.shfl_xor(at_file_scope[threadIdx.x], 3), 3);
  if (mine(part, i)) out[i] = same + b[i];
}

__global__ void simple(float* out, const float* a, const float* b, Part part) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (mine(part, i)) out[i] = a[i] + b[i];
}

__global__ void by_atomics(float* out, const float* a, const float* b, Part part) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (!mine(part, i)) return;
  out[i] = 0;
  atomicAdd(&out[i], a[i]);
  atomicAdd(out + i, b[i]);
}

template <class T>
static void launch_all(T* out, const T* a, const T* b, int n, cudaStream_t stream) {
  const int threads = 64;
  dim3 blocks((n + threads - 1) / threads), block(threads, 1, 1);
  static_arrays<<<blocks, WIDTH>>>(out, a, b, Part{0, n});
  outer::inner::templated<T, (64 >> 0)>
      <<<blocks, block, threads * sizeof(T), stream>>>(out, a, b, Part{1, n});
  ::outer::inner::templated<float, 64><<<blocks.x, threads, sizeof(T[64])>>>(out, a, b, Part{2, n});
  deduced<<<blocks, block, sizeof(float) * block.x * block.y>>>(out, a, b, Part{3, n});
  LAUNCH(simple, n, out, a, b, Part{4, n});
  auto chosen = n > 0 ? simple : by_atomics;
  chosen<<<(n + 63) / 64, 64, 0, 0>>>(out, a, b, Part{5, n});
  by_atomics<<<dim3{blocks.x, 1, 1}, dim3(64)>>>(out, a, b, Part{6, n});
  if (n > 0) (*chosen)<<<blocks, block>>>(out, a, b, Part{7, n});
}

static int add(const plumb_call* call) {
  const plumb_tensor* x = &call->tensors[1];
  if (x->dtype != PLUMB_F32 || !text) return PLUMB_UNSUPPORTED;
  int64_t n = 1;
  for (int axis = 0; axis < x->rank; ++axis) n *= x->shape[axis];
  const float one = 1;
  if (cudaMemcpyToSymbol(one_of, &one, sizeof one) != cudaSuccess) return PLUMB_FAILED;
  float *a = nullptr, *result = nullptr;
  const size_t bytes = n * sizeof(float);
  if (cudaMalloc(&a, bytes) != cudaSuccess || cudaMalloc((void**)&result, bytes) != cudaSuccess)
    return PLUMB_FAILED;
  cudaMemcpy(a, call->tensors[1].data, bytes, cudaMemcpyDeviceToDevice);
  cudaMemset(result, 0, bytes);
  launch_all(result, (const float*)a, (const float*)call->tensors[2].data, static_cast<int>(n),
             static_cast<cudaStream_t>(call->stream));
  cudaMemcpy(call->tensors[0].data, result, bytes, cudaMemcpyDeviceToDevice);
  cudaFree(a);
  cudaFree(result);
  return cudaDeviceSynchronize() == cudaSuccess ? PLUMB_OK : PLUMB_FAILED;
}

extern "C" const plumb_plugin* plumb_plugin_entry(void) {
  static const plumb_op ops[] = {{"add", add, {24, 0, 0}}};
  static const plumb_plugin plugin = {PLUMB_PLUGIN_VERSION, "forms", PLUMB_DEVICE, nullptr, 1, ops};
  return &plugin;
}
