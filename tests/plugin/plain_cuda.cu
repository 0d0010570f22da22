// CUDA as it is found: an RMSNorm that reduces by shuffles, and a product of tiles. Nothing here
// knows of Plumbline. TAIL=0 leaves out the mask of the last tile, BARRIER=0 a barrier.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#ifndef TAIL
#define TAIL 1
#endif
#ifndef BARRIER
#define BARRIER 1
#endif
#define TILE 16

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

__inline__ __device__ float warp_reduce_sum(float val) {
#pragma unroll
  for (int offset = warpSize / 2; offset > 0; offset /= 2)
    val += __shfl_down_sync(0xffffffff, val, offset);
  return val;
}

__inline__ __device__ float block_reduce_sum(float val) {
  static __shared__ float shared[32];  // one partial sum per warp
  int lane = threadIdx.x % warpSize, wid = threadIdx.x / warpSize;
  val = warp_reduce_sum(val);
  if (lane == 0) shared[wid] = val;
#if BARRIER
  __syncthreads();
#endif
  val = threadIdx.x < blockDim.x / warpSize ? shared[lane] : 0.0f;
  if (wid == 0) val = warp_reduce_sum(val);
  return val;
}

template <typename T>
__global__ void rms_norm_kernel(T* __restrict__ out, const T* __restrict__ x,
                                const T* __restrict__ weight, int columns, float eps, float offset,
                                bool round_before) {
  __shared__ float scale;
  const T* row = x + (size_t)blockIdx.x * columns;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    float v = to_float(row[i]);
    sum += v * v;
  }
  sum = block_reduce_sum(sum);
  if (threadIdx.x == 0) scale = rsqrtf(sum / columns + eps);
  __syncthreads();
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    float n = to_float(row[i]) * scale;
    if (round_before) n = to_float(T(n));
    out[(size_t)blockIdx.x * columns + i] = T((offset + to_float(weight[i])) * n);
  }
}

// c[m, n] = sum over k of a[m, k] b[n, k].
__global__ void matmul_nt_kernel(const float* a, const float* b, float* c, int M, int N, int K) {
  __shared__ float As[TILE][TILE], Bs[TILE][TILE + 1];
  int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
  float acc = 0.0f;
  for (int t = 0; t < (K + TILE - 1) / TILE; ++t) {
    int k = t * TILE + threadIdx.x, n = blockIdx.x * TILE + threadIdx.y;
    As[threadIdx.y][threadIdx.x] = row < M && k < K ? a[(size_t)row * K + k] : 0.0f;
#if TAIL
    Bs[threadIdx.y][threadIdx.x] = n < N && k < K ? b[(size_t)n * K + k] : 0.0f;
#else
    Bs[threadIdx.y][threadIdx.x] = b[(size_t)n * K + k];
#endif
    __syncthreads();
    for (int i = 0; i < TILE; ++i) acc += As[threadIdx.y][i] * Bs[threadIdx.x][i];
    __syncthreads();
  }
  if (row < M && col < N) c[(size_t)row * N + col] = acc;
}

extern __shared__ float row_values[];

__global__ void softmax_kernel(float* out, const float* x, int columns) {
  size_t start = (size_t)blockIdx.x * columns;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) row_values[i] = x[start + i];
  __shared__ unsigned highest;  // floats in the order of unsigned numbers
  if (threadIdx.x == 0) highest = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    int bits = __float_as_int(row_values[i]);
    atomicMax(&highest, bits < 0 ? ~(unsigned)bits : (unsigned)bits | 0x80000000u);
  }
  __syncthreads();
  float top = __int_as_float(highest & 0x80000000u ? highest ^ 0x80000000u : ~highest);
  float sum = 0.0f;
  for (int i = 0; i < columns; ++i) sum += __expf(row_values[i] - top);
  for (int i = threadIdx.x; i < columns; i += blockDim.x)
    out[start + i] = __expf(row_values[i] - top) / sum;
}

template <typename T>
cudaError_t rms_norm(T* out, const T* x, const T* weight, int rows, int columns, float eps,
                     float offset, bool round_before, cudaStream_t stream) {
  dim3 grid(rows), block(128);
  rms_norm_kernel<T>
      <<<grid, block, 0, stream>>>(out, x, weight, columns, eps, offset, round_before);
  return cudaGetLastError();
}

cudaError_t matmul_nt(const float* a, const float* b, float* c, int M, int N, int K) {
  dim3 threads(TILE, TILE);
  dim3 blocks((N + TILE - 1) / TILE, (M + TILE - 1) / TILE);
  matmul_nt_kernel<<<blocks, threads>>>(a, b, c, M, N, K);
  return cudaDeviceSynchronize();
}

void softmax(float* out, const float* x, int rows, int columns, cudaStream_t stream) {
  softmax_kernel<<<rows, 64, columns * sizeof(float), stream>>>(out, x, columns);
}
