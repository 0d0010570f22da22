#include "kernels/opencl/opencl_api.h"

#include <dlfcn.h>

#include "kernels/core/error.h"

namespace plumb::opencl {

Api open_api(const std::string& loader) {
  void* library = dlopen(loader.c_str(), RTLD_NOW);
  require<DeviceError>(library, "opencl", "no OpenCL loader (", loader,
                       "): install ocl-icd-libopencl1 and a driver, for example pocl-opencl-icd");
  Api out;
#define PLUMB_FIND(f)                                            \
  out.f = reinterpret_cast<decltype(out.f)>(dlsym(library, #f)); \
  require<DeviceError>(out.f, "opencl", loader, " is older than OpenCL 2.0: it has no " #f);
  PLUMB_FOR_EACH_CL(PLUMB_FIND)
#undef PLUMB_FIND
  return out;
}

std::string reason(cl_int error) {
  constexpr cl_int kNoPlatform = -1001;  // CL_PLATFORM_NOT_FOUND_KHR
  switch (error) {
#define PLUMB_NAME(name) \
  case name: return #name;
    PLUMB_NAME(CL_DEVICE_NOT_AVAILABLE)
    PLUMB_NAME(CL_OUT_OF_RESOURCES)
    PLUMB_NAME(CL_OUT_OF_HOST_MEMORY)
    PLUMB_NAME(CL_BUILD_PROGRAM_FAILURE)
    PLUMB_NAME(CL_INVALID_WORK_GROUP_SIZE)
    PLUMB_NAME(CL_INVALID_KERNEL_ARGS)
    PLUMB_NAME(CL_INVALID_VALUE)
#undef PLUMB_NAME
    case CL_COMPILER_NOT_AVAILABLE: return "CL_COMPILER_NOT_AVAILABLE: the driver has no compiler";
    case CL_MEM_OBJECT_ALLOCATION_FAILURE: return "CL_MEM_OBJECT_ALLOCATION_FAILURE: out of memory";
    case kNoPlatform:
      return "no driver is registered in /etc/OpenCL/vendors: install one, for example "
             "pocl-opencl-icd";
    default: return text("OpenCL error ", error);
  }
}

void check(cl_int error, const std::string& what) {
  require<DeviceError>(error == CL_SUCCESS, "opencl", what, ": ", reason(error));
}

}  // namespace plumb::opencl
