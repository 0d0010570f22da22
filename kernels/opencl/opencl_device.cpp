#include "kernels/opencl/opencl_device.h"

#include "kernels/gpu/device_list.h"
#include "kernels/opencl/opencl_driver.h"
#include "kernels/portable/portable_device.h"

namespace plumb {
namespace {

std::unique_ptr<portable::PortableDevice> open_numbered(int number) {
  return std::make_unique<portable::PortableDevice>(
      text("opencl:", number), opencl::open_driver(opencl::open_api(), number));
}

}  // namespace

std::vector<DeviceStatus> list_opencl_devices() {
  std::vector<DeviceStatus> out;
  try {
    const size_t count = opencl::find_devices(opencl::open_api()).size();
    if (count == 0) return {{"opencl", false, "no device", false}};
    for (size_t i = 0; i < count; ++i) {
      const int number = static_cast<int>(i);
      try {
        const auto device = open_numbered(number);
        out.push_back({device->name(), true, device->describe(), !device->is_cpu()});
      } catch (const Error& error) {
        out.push_back({text("opencl:", i), false, error.what(), false});
      }
    }
  } catch (const Error& error) {
    return {{"opencl", false, error.what(), false}};
  }
  return out;
}

std::unique_ptr<Device> open_opencl_device(const std::string& name) {
  return open_numbered(gpu_number(name));
}

}  // namespace plumb
