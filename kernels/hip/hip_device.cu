#include <hip/hip_runtime.h>

#include "kernels/gpu/device_list.h"
#include "kernels/gpu/gpu_device.h"
#include "kernels/hip/hip_device.h"

namespace plumb {
namespace {

// Why the runtime finds no GPU, and what to do about it.
std::string explain(hipError_t error) {
  switch (error) {
    case hipErrorNoDevice:
      return "no AMD GPU is visible; see rocminfo, /dev/kfd and HIP_VISIBLE_DEVICES";
    case hipErrorInsufficientDriver:
      return "the amdgpu driver is older than this build's ROCm: update it";
    default: return text(hipGetErrorName(error), ": ", hipGetErrorString(error));
  }
}

__global__ void probe_kernel(int* out) { *out = 42; }

// "" when kernels of this build run on the GPU, else why not.
std::string kernel_problem(int ordinal, const hipDeviceProp_t& properties) {
  int* out = nullptr;
  hipError_t error = hipSetDevice(ordinal);
  if (error == hipSuccess) error = hipMalloc(reinterpret_cast<void**>(&out), sizeof *out);
  if (error == hipSuccess) {
    probe_kernel<<<1, 1>>>(out);
    error = hipGetLastError();
    if (error == hipSuccess) error = hipDeviceSynchronize();
  }
  (void)hipFree(out);
  (void)hipGetLastError();  // a failed probe must not be the next call's error
  if (error == hipSuccess) return "";
  if (error == hipErrorNoBinaryForGpu || error == hipErrorInvalidDeviceFunction) {
    return text("this build has no code for ", properties.gcnArchName,
                ": build with -DPLUMB_HIP_ARCHITECTURES=", properties.gcnArchName);
  }
  return explain(error);
}

DeviceStatus status_of(int ordinal) {
  DeviceStatus out;
  out.name = text("hip:", ordinal);
  hipDeviceProp_t properties{};
  if (const hipError_t error = hipGetDeviceProperties(&properties, ordinal); error != hipSuccess) {
    out.text = explain(error);
    return out;
  }
  int driver = 0;
  (void)hipDriverGetVersion(&driver);
  out.text = text(properties.name, ", ", properties.totalGlobalMem >> 20, " MiB, ",
                  properties.gcnArchName, ", ", properties.multiProcessorCount,
                  " compute units, wave ", properties.warpSize, ", driver ", driver);
  const std::string problem = kernel_problem(ordinal, properties);
  out.usable = problem.empty();
  if (!problem.empty()) out.text += "; " + problem;
  return out;
}

}  // namespace

std::vector<DeviceStatus> list_hip_devices() {
  int count = 0;
  const hipError_t error = hipGetDeviceCount(&count);
  if (error != hipSuccess) return {{"hip", false, explain(error)}};
  if (count == 0) return {{"hip", false, explain(hipErrorNoDevice)}};
  std::vector<DeviceStatus> out;
  for (int i = 0; i < count; ++i) out.push_back(status_of(i));
  return out;
}

std::unique_ptr<Device> open_hip_device(const std::string& name) {
  const std::vector<DeviceStatus> all = list_hip_devices();
  const int ordinal = usable_gpu(all, name);
  const DeviceStatus& status = all[static_cast<size_t>(ordinal)];
  return std::make_unique<hip::GpuDevice>(status.name, status.text, ordinal);
}

}  // namespace plumb
