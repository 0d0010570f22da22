#include "kernels/emu/open.h"
#include "kernels/gpu/gpu_device.h"

namespace plumb::PLUMB_GPU_VENDOR {

std::unique_ptr<Device> open(const std::string& name, const std::string& description, int wave) {
  return std::make_unique<GpuDevice>(name, description, wave);
}

}  // namespace plumb::PLUMB_GPU_VENDOR
