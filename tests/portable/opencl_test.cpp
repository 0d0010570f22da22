// What OpenCL says when something is missing, by a driver that is not there or does not work.
#include <cstring>
#include <map>

#include "kernels/core/error.h"
#include "kernels/opencl/opencl_driver.h"
#include "tests/catch.h"

namespace plumb::opencl {
namespace {

// What the stand-in for a driver has and does.
struct Stand {
  std::vector<cl_device_type> devices = {CL_DEVICE_TYPE_CPU, CL_DEVICE_TYPE_GPU};
  cl_int platforms = CL_SUCCESS, build = CL_SUCCESS;
  cl_device_svm_capabilities svm = CL_DEVICE_SVM_COARSE_GRAIN_BUFFER;
  bool has_memory = true;
};
Stand stand;

cl_device_id id_of(size_t i) { return reinterpret_cast<cl_device_id>(i + 1); }
size_t index_of(cl_device_id id) { return reinterpret_cast<size_t>(id) - 1; }

template <class T>
void put(void* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

cl_int info(cl_device_id device, cl_device_info what, size_t, void* to, size_t*) {
  switch (what) {
    case CL_DEVICE_TYPE: put(to, stand.devices[index_of(device)]); break;
    case CL_DEVICE_SVM_CAPABILITIES: put(to, stand.svm); break;
    case CL_DEVICE_NAME: std::strcpy(static_cast<char*>(to), "Stand-in"); break;
    case CL_DEVICE_VERSION: std::strcpy(static_cast<char*>(to), "OpenCL 1.2 test"); break;
    case CL_DEVICE_MAX_MEM_ALLOC_SIZE: put(to, cl_ulong{1000}); break;
    case CL_DEVICE_GLOBAL_MEM_SIZE: put(to, cl_ulong{4000}); break;
    default: break;
  }
  return CL_SUCCESS;
}

Api stand_in() {
  stand = {};
  Api api;
  api.clGetPlatformIDs = [](cl_uint, cl_platform_id*, cl_uint* count) {
    if (count) *count = 1;
    return stand.platforms;
  };
  api.clGetDeviceIDs = [](cl_platform_id, cl_device_type, cl_uint room, cl_device_id* ids,
                          cl_uint* count) {
    for (size_t i = 0; i < room; ++i) ids[i] = id_of(i);
    if (count) *count = static_cast<cl_uint>(stand.devices.size());
    return cl_int{CL_SUCCESS};
  };
  api.clGetDeviceInfo = info;
  api.clCreateContext = [](const cl_context_properties*, cl_uint, const cl_device_id*,
                           void (*)(const char*, const void*, size_t, void*), void*,
                           cl_int* error) {
    *error = CL_SUCCESS;
    return cl_context{};
  };
  api.clCreateCommandQueueWithProperties = [](cl_context, cl_device_id, const cl_queue_properties*,
                                              cl_int* error) {
    *error = CL_SUCCESS;
    return cl_command_queue{};
  };
  api.clCreateProgramWithSource = [](cl_context, cl_uint, const char**, const size_t*,
                                     cl_int* error) {
    *error = CL_SUCCESS;
    return cl_program{};
  };
  api.clBuildProgram = [](cl_program, cl_uint, const cl_device_id*, const char*,
                          void (*)(cl_program, void*), void*) { return stand.build; };
  api.clGetProgramBuildInfo = [](cl_program, cl_device_id, cl_program_build_info, size_t, void* to,
                                 size_t*) {
    std::strcpy(static_cast<char*>(to), "line 3: no such word");
    return cl_int{CL_SUCCESS};
  };
  api.clSVMAlloc = [](cl_context, cl_svm_mem_flags, size_t, cl_uint) -> void* { return nullptr; };
  const auto ignore = [](auto) { return cl_int{CL_SUCCESS}; };
  api.clReleaseProgram = ignore;
  api.clReleaseCommandQueue = ignore;
  api.clReleaseContext = ignore;
  api.clFinish = ignore;
  return api;
}

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "no error";
}

TEST_CASE("opencl: without a loader it says what to install") {
  CHECK(error_of([] { open_api("libnothing.so.1"); }) ==
        "[opencl] no OpenCL loader (libnothing.so.1): install ocl-icd-libopencl1 and a driver, for "
        "example pocl-opencl-icd");
}

TEST_CASE("opencl: a loader that lacks functions is too old") {
  CHECK(error_of([] { open_api("libm.so.6"); }) ==
        "[opencl] libm.so.6 is older than OpenCL 2.0: it has no clGetPlatformIDs");
}

TEST_CASE("opencl: without a driver it says where drivers are registered") {
  const Api api = stand_in();
  stand.platforms = -1001;
  CHECK(error_of([&] { find_devices(api); }) ==
        "[opencl] clGetPlatformIDs: no driver is registered in /etc/OpenCL/vendors: install one, "
        "for example pocl-opencl-icd");
}

TEST_CASE("opencl: a number that no device has is an error with how many there are") {
  const Api api = stand_in();
  CHECK(error_of([&] { open_driver(api, 9); }) ==
        "[opencl] no device 9: 2 found, counted from 0; clinfo -l lists them");
}

TEST_CASE("opencl: GPUs are counted before CPUs") {
  const Api api = stand_in();
  CHECK(find_devices(api) == std::vector<cl_device_id>{id_of(1), id_of(0)});
  CHECK_FALSE(open_driver(api, 0)->is_cpu());
  CHECK(open_driver(api, 1)->describe() == "Stand-in (the CPU), OpenCL 1.2 test, driver ");
}

TEST_CASE("opencl: a device without shared virtual memory cannot be opened") {
  const Api api = stand_in();
  stand.svm = 0;
  CHECK(error_of([&] { open_driver(api, 0); }) ==
        "[opencl] Stand-in (OpenCL 1.2 test) has no shared virtual memory, which addresses of "
        "tensors need");
}

TEST_CASE("opencl: a kernel that does not build is an error with the compiler's words") {
  const Api api = stand_in();
  stand.build = CL_BUILD_PROGRAM_FAILURE;
  const auto driver = open_driver(api, 0);
  const portable::Kernel kernel{&portable::kernel_source("softmax"), portable::Storage::f32};
  CHECK(error_of([&] { driver->launch(kernel, 1, nullptr, 0); }) ==
        "[opencl] softmax does not build on Stand-in: CL_BUILD_PROGRAM_FAILURE\n"
        "line 3: no such word");
}

TEST_CASE("opencl: memory that there is not is an error with both numbers") {
  const Api api = stand_in();
  const auto driver = open_driver(api, 0);
  CHECK(error_of([&] { driver->allocate(5000); }) ==
        "[opencl] 5000 bytes asked for on Stand-in, which has 4000 and gives 1000 at once: out of "
        "memory");
  CHECK(error_of([&] { driver->allocate(500); }).find("500 bytes asked for") != std::string::npos);
}

}  // namespace
}  // namespace plumb::opencl
