#include <cuda_runtime.h>

#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/gpu/device_list.h"
#include "kernels/gpu/gpu_device.h"

namespace plumb {
namespace {

std::string version_text(int version) { return text(version / 1000, '.', version % 1000 / 10); }

// Why the runtime finds no GPU, and what to do about it.
std::string explain(cudaError_t error) {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  switch (error) {
    case cudaErrorNoDevice:
      return "no NVIDIA GPU is visible; see nvidia-smi and CUDA_VISIBLE_DEVICES";
    case cudaErrorInsufficientDriver:
      if (driver == 0)
        return "no NVIDIA driver is installed (libcuda.so.1); install one, see nvidia-smi";
      return text("the NVIDIA driver supports CUDA ", version_text(driver), ", this build needs ",
                  version_text(runtime),
                  ": update the driver, or build with an older CUDA toolkit");
    default: return text(cudaGetErrorName(error), ": ", cudaGetErrorString(error));
  }
}

__global__ void probe_kernel(int* out) { *out = 42; }

// "" when kernels of this build run on the GPU, else why not.
std::string kernel_problem(int ordinal, const cudaDeviceProp& properties) {
  int previous = 0;
  cudaGetDevice(&previous);
  std::string problem;
  int* out = nullptr;
  cudaError_t error = cudaSetDevice(ordinal);
  if (error == cudaSuccess) error = cudaMalloc(&out, sizeof *out);
  if (error == cudaSuccess) {
    probe_kernel<<<1, 1>>>(out);
    error = cudaGetLastError();
    if (error == cudaSuccess) error = cudaDeviceSynchronize();
  }
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
    problem = text("this build has no code for compute capability ", properties.major, '.',
                   properties.minor, ": build with -DCMAKE_CUDA_ARCHITECTURES=", properties.major,
                   properties.minor);
  } else if (error != cudaSuccess) {
    problem = explain(error);
  }
  cudaFree(out);
  cudaGetLastError();  // a failed probe must not be the next call's error
  cudaSetDevice(previous);
  return problem;
}

DeviceStatus status_of(int ordinal) {
  DeviceStatus out;
  out.name = text("cuda:", ordinal);
  cudaDeviceProp properties{};
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, ordinal);
      error != cudaSuccess) {
    out.text = explain(error);
    return out;
  }
  const std::string problem = kernel_problem(ordinal, properties);
  out.usable = problem.empty();
  int driver = 0;
  cudaDriverGetVersion(&driver);
  out.text =
      text(properties.name, ", ", properties.totalGlobalMem >> 20, " MiB, compute capability ",
           properties.major, '.', properties.minor, ", ", properties.multiProcessorCount,
           " multiprocessors, driver for CUDA ", version_text(driver), ", ", cublaslt_text());
  if (!problem.empty()) out.text += "; " + problem;
  return out;
}

}  // namespace

std::vector<DeviceStatus> list_cuda_devices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return {{"cuda", false, explain(error)}};
  if (count == 0) return {{"cuda", false, explain(cudaErrorNoDevice)}};
  std::vector<DeviceStatus> out;
  for (int i = 0; i < count; ++i) out.push_back(status_of(i));
  return out;
}

std::unique_ptr<Device> open_cuda_device(const std::string& name) {
  const std::vector<DeviceStatus> all = list_cuda_devices();
  const int ordinal = usable_gpu(all, name);
  const DeviceStatus& status = all[static_cast<size_t>(ordinal)];
  return std::make_unique<cuda::GpuDevice>(status.name, status.text, ordinal);
}

}  // namespace plumb
