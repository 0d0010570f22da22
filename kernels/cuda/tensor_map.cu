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

constexpr cuuint64_t kUnit = 16, kMostBytes = cuuint64_t{1} << 40;
constexpr int kPanel = 64;  // columns whose rows fill the swizzle's 128 bytes

// Axes, innermost first.
struct Axes {
  int count = 0;
  cuuint64_t extent[5], bytes[5];  // bytes: from one element of the axis to the next
  cuuint32_t box[5];

  void add(int64_t axis_extent, int64_t axis_bytes, int64_t box_extent) {
    // An axis of extent 1 is never stepped along and may have any stride: here that of a dense
    // tensor.
    const bool dense = axis_extent == 1 && count > 0;
    extent[count] = static_cast<cuuint64_t>(axis_extent);
    bytes[count] =
        dense ? bytes[count - 1] * extent[count - 1] : static_cast<cuuint64_t>(axis_bytes);
    box[count++] = static_cast<cuuint32_t>(box_extent);
  }
  bool fit() const {
    constexpr cuuint64_t kMostExtent = cuuint64_t{1} << 31;
    for (int i = 0; i < count; ++i) {
      if (extent[i] < 1 || extent[i] > kMostExtent) return false;
      if (i > 0 && (bytes[i] == 0 || bytes[i] >= kMostBytes || bytes[i] % kUnit != 0)) return false;
    }
    return true;
  }
};

std::optional<CUtensorMap> encode_map(const Tensor& t, const Axes& axes) {
  static const Encode encode = find_encoder();
  if (!encode || size_of(t.dtype()) != 2 || reinterpret_cast<uintptr_t>(t.raw()) % kUnit != 0 ||
      !axes.fit()) {
    return {};
  }
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  const CUtensorMapDataType type =
      t.dtype() == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  CUtensorMap map{};
  const CUresult result =
      encode(&map, type, static_cast<cuuint32_t>(axes.count), t.raw(), axes.extent, axes.bytes + 1,
             axes.box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) return {};
  return map;
}

}  // namespace

std::optional<CUtensorMap> make_tensor_map(const Tensor& t, int token_axis, int tokens) {
  const auto bytes = [&](int axis) { return t.stride(axis) * 2; };
  const int head_axis = 3 - token_axis;
  Axes axes;
  axes.add(t.dim(3), 2, kPanel);
  axes.add(t.dim(token_axis), bytes(token_axis), tokens);
  axes.add(t.dim(head_axis), bytes(head_axis), 1);
  axes.add(t.dim(0), bytes(0), 1);
  return encode_map(t, axes);
}

std::optional<CUtensorMap> make_row_map(const Tensor& t, int tokens) {
  const int64_t panels = t.dim(3) / kPanel;
  Axes axes;
  axes.add(kPanel, 2, kPanel);
  axes.add(t.dim(2), t.stride(2) * 2, tokens);
  axes.add(panels, kPanel * 2, panels);
  axes.add(t.dim(1), t.stride(1) * 2, 1);
  axes.add(t.dim(0), t.stride(0) * 2, 1);
  return encode_map(t, axes);
}

}  // namespace plumb::cuda
