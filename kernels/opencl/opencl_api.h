// The functions of OpenCL, found when the program runs: it links to no loader.
#pragma once

#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>

#include <string>

// clang-format off
#define PLUMB_FOR_EACH_CL(X)                                                                 \
  X(clGetPlatformIDs) X(clGetDeviceIDs) X(clGetDeviceInfo) X(clCreateContext)                \
  X(clReleaseContext) X(clCreateCommandQueueWithProperties) X(clReleaseCommandQueue)         \
  X(clCreateProgramWithSource) X(clBuildProgram) X(clGetProgramBuildInfo) X(clCreateKernel)  \
  X(clReleaseKernel) X(clReleaseProgram) X(clSetKernelArg) X(clSetKernelExecInfo)            \
  X(clEnqueueNDRangeKernel) X(clFinish) X(clSVMAlloc) X(clSVMFree) X(clEnqueueSVMMemcpy)     \
  X(clEnqueueSVMMemFill) X(clGetEventProfilingInfo) X(clReleaseEvent)
// clang-format on

namespace plumb::opencl {

struct Api {
#define PLUMB_POINTER(f) decltype(&::f) f = nullptr;
  PLUMB_FOR_EACH_CL(PLUMB_POINTER)
#undef PLUMB_POINTER
};

inline constexpr const char* kLoader = "libOpenCL.so.1";

// Throws DeviceError where the loader is missing, or lacks a function.
Api open_api(const std::string& loader = kLoader);

// "CL_OUT_OF_RESOURCES"
std::string reason(cl_int error);
// Throws DeviceError("[opencl] what: reason") for an error.
void check(cl_int error, const std::string& what);

}  // namespace plumb::opencl
