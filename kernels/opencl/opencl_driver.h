// The portable kernels on OpenCL: coarse-grained shared virtual memory, so that a tensor's address
// is one; OpenCL C, built when a kernel is first used.
#pragma once

#include <vector>

#include "kernels/opencl/opencl_api.h"
#include "kernels/portable/driver.h"

namespace plumb::opencl {

// All devices of all platforms, GPUs before CPUs. Throws DeviceError where there is no driver.
std::vector<cl_device_id> find_devices(const Api& api);

// Throws DeviceError for a number that no device has, and for one without shared memory.
std::unique_ptr<portable::Driver> open_driver(const Api& api, int number);

}  // namespace plumb::opencl
