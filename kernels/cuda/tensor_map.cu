#include <cuda_runtime.h>

#include "kernels/cuda/tensor_map.h"

namespace plumb::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// From the driver, through the runtime: nothing needs to be linked with libcuda.
Encode find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             12000, cudaEnableDefault, &found);
  if (error != cudaSuccess) cudaGetLastError();  // must not be the next call's error
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess
             ? reinterpret_cast<Encode>(function)
             : nullptr;
}

}  // namespace

std::optional<CUtensorMap> make_tensor_map(const Tensor& t, int token_axis, int tokens) {
  const int axes[4] = {3, token_axis, 3 - token_axis, 0};  // innermost first
  static const Encode encode = find_encoder();
  constexpr int64_t kUnit = 16, kMostBytes = int64_t{1} << 40, kMostExtent = int64_t{1} << 31;
  if (!encode || size_of(t.dtype()) != 2 || reinterpret_cast<uintptr_t>(t.raw()) % kUnit != 0) {
    return {};
  }
  cuuint64_t extents[4], strides[3];  // strides: bytes, of the outer axes
  for (int i = 0; i < 4; ++i) {
    const int axis = axes[i];
    if (t.dim(axis) < 1 || t.dim(axis) > kMostExtent) return {};
    extents[i] = static_cast<cuuint64_t>(t.dim(axis));
    if (i == 0) continue;
    // An axis of extent 1 is never stepped along and may have any stride: here that of a dense
    // tensor.
    const int64_t dense =
        static_cast<int64_t>(i == 1 ? extents[0] * 2 : strides[i - 2] * extents[i - 1]);
    const int64_t bytes = t.dim(axis) == 1 ? dense : t.stride(axis) * 2;
    if (bytes <= 0 || bytes >= kMostBytes || bytes % kUnit != 0) return {};
    strides[i - 1] = static_cast<cuuint64_t>(bytes);
  }
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(tokens), 1, 1}, steps[4] = {1, 1, 1, 1};
  const CUtensorMapDataType type =
      t.dtype() == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  CUtensorMap map{};
  const CUresult result =
      encode(&map, type, 4, t.raw(), extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) return {};
  return map;
}

}  // namespace plumb::cuda
