#include "kernels/opencl/opencl_driver.h"

#include <algorithm>
#include <map>
#include <utility>

#include "kernels/core/error.h"

namespace plumb::opencl {
namespace {

using portable::Kernel;

template <class T>
T device_number(const Api& api, cl_device_id device, cl_device_info what) {
  T out{};
  api.clGetDeviceInfo(device, what, sizeof out, &out, nullptr);
  return out;
}

std::string device_text(const Api& api, cl_device_id device, cl_device_info what) {
  char out[256] = {};
  api.clGetDeviceInfo(device, what, sizeof out - 1, out, nullptr);
  return out;
}

bool is_cpu_device(const Api& api, cl_device_id device) {
  return device_number<cl_device_type>(api, device, CL_DEVICE_TYPE) & CL_DEVICE_TYPE_CPU;
}

void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

struct Built {
  cl_kernel kernel{};
  size_t chunks = 0;  // that it knows of
};

class OpenClDriver final : public portable::Driver {
 public:
  OpenClDriver(const Api& api, cl_device_id device) : cl_(api), device_(device) {
    const auto svm =
        device_number<cl_device_svm_capabilities>(cl_, device_, CL_DEVICE_SVM_CAPABILITIES);
    require<DeviceError>(svm & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER, "opencl", name(), " (",
                         device_text(cl_, device_, CL_DEVICE_VERSION),
                         ") has no shared virtual memory, which addresses of tensors need");
    cl_int error = 0;
    context_ = cl_.clCreateContext(nullptr, 1, &device_, nullptr, nullptr, &error);
    check(error, "clCreateContext on " + name());
    const cl_queue_properties properties[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE, 0};
    queue_ = cl_.clCreateCommandQueueWithProperties(context_, device_, properties, &error);
    check(error, "clCreateCommandQueue on " + name());
  }
  ~OpenClDriver() override {
    cl_.clFinish(queue_);
    for (const auto& [kernel, built] : kernels_) cl_.clReleaseKernel(built.kernel);
    for (void* chunk : chunks_) cl_.clSVMFree(context_, chunk);
    cl_.clReleaseCommandQueue(queue_);
    cl_.clReleaseContext(context_);
  }

  std::string describe() const override {
    return text(name(), is_cpu() ? " (the CPU)" : "", ", ",
                device_text(cl_, device_, CL_DEVICE_VERSION), ", driver ",
                device_text(cl_, device_, CL_DRIVER_VERSION));
  }
  bool is_cpu() const override { return is_cpu_device(cl_, device_); }
  void use_split_products() override { split_products_ = true; }

  uint64_t allocate(size_t bytes) override {
    const auto most = device_number<cl_ulong>(cl_, device_, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
    void* chunk = bytes <= most ? cl_.clSVMAlloc(context_, CL_MEM_READ_WRITE, bytes, 0) : nullptr;
    require<DeviceError>(chunk, "opencl", bytes, " bytes asked for on ", name(), ", which has ",
                         device_number<cl_ulong>(cl_, device_, CL_DEVICE_GLOBAL_MEM_SIZE),
                         " and gives ", most, " at once: out of memory");
    chunks_.push_back(chunk);
    return reinterpret_cast<uint64_t>(chunk);
  }
  void release(uint64_t address) override {
    cl_.clFinish(queue_);
    chunks_.erase(std::find(chunks_.begin(), chunks_.end(), pointer(address)));
    for (auto& [kernel, built] : kernels_) built.chunks = 0;
    cl_.clSVMFree(context_, pointer(address));
  }
  void upload(uint64_t to, const void* from, size_t bytes) override {
    check(cl_.clEnqueueSVMMemcpy(queue_, CL_TRUE, pointer(to), from, bytes, 0, nullptr, nullptr),
          "copy to the device");
  }
  void download(void* to, uint64_t from, size_t bytes) override {
    check(cl_.clEnqueueSVMMemcpy(queue_, CL_TRUE, to, pointer(from), bytes, 0, nullptr, nullptr),
          "copy to the host");
  }
  void fill(uint64_t to, uint8_t byte, size_t bytes) override {
    check(cl_.clEnqueueSVMMemFill(queue_, pointer(to), &byte, 1, bytes, 0, nullptr, event()),
          "fill");
  }
  void launch(const Kernel& kernel, uint32_t groups, const void* arguments, size_t bytes) override {
    const char* what = kernel.source->name;
    Built& built = built_kernel(kernel);
    check(cl_.clSetKernelArg(built.kernel, 0, bytes, arguments), what);
    if (built.chunks != chunks_.size()) {  // what its addresses may be in
      check(cl_.clSetKernelExecInfo(built.kernel, CL_KERNEL_EXEC_INFO_SVM_PTRS,
                                    chunks_.size() * sizeof(void*), chunks_.data()),
            what);
      built.chunks = chunks_.size();
    }
    const auto threads = static_cast<size_t>(kernel.source->threads), all = groups * threads;
    check(cl_.clEnqueueNDRangeKernel(queue_, built.kernel, 1, nullptr, &all, &threads, 0, nullptr,
                                     event()),
          what);
  }
  void synchronize() override { check(cl_.clFinish(queue_), "synchronize"); }

  // From the start of the first command to the end of the last.
  double time(const std::function<void()>& queue_work) override {
    timing_ = true;
    try {
      queue_work();
    } catch (...) {
      timing_ = false;
      take_seconds();
      throw;
    }
    timing_ = false;
    return take_seconds();
  }

 private:
  std::string name() const { return device_text(cl_, device_, CL_DEVICE_NAME); }

  // Where a command's event goes, while commands are timed.
  cl_event* event() {
    if (!timing_) return nullptr;
    return &events_.emplace_back();
  }
  double take_seconds() {
    synchronize();
    const auto at = [&](cl_event event, cl_profiling_info what) {
      cl_ulong nanoseconds = 0;
      cl_.clGetEventProfilingInfo(event, what, sizeof nanoseconds, &nanoseconds, nullptr);
      return nanoseconds;
    };
    double seconds = 0;
    if (!events_.empty()) {
      const cl_ulong start = at(events_.front(), CL_PROFILING_COMMAND_START);
      const cl_ulong end = at(events_.back(), CL_PROFILING_COMMAND_END);
      seconds = static_cast<double>(end - start) * 1e-9;
    }
    for (cl_event event : std::exchange(events_, {})) cl_.clReleaseEvent(event);
    return seconds;
  }

  std::string options(const Kernel& kernel) const {
    const auto config =
        device_number<cl_device_fp_config>(cl_, device_, CL_DEVICE_SINGLE_FP_CONFIG);
    return text("-cl-std=CL1.2 -DSTORAGE=", static_cast<int>(kernel.storage),
                split_products_ ? " -DSPLIT_PRODUCTS" : "",
                config & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT
                    ? " -cl-fp32-correctly-rounded-divide-sqrt"
                    : "");
  }
  Built& built_kernel(const Kernel& wanted) {
    const Kernel kernel{wanted.source, wanted.storage};  // all variants are one program
    if (const auto found = kernels_.find(kernel); found != kernels_.end()) return found->second;
    const std::string what = kernel.source->name;
    cl_int error = 0;
    const char* source = kernel.source->text;
    cl_program program = cl_.clCreateProgramWithSource(context_, 1, &source, nullptr, &error);
    check(error, what);
    error = cl_.clBuildProgram(program, 1, &device_, options(kernel).c_str(), nullptr, nullptr);
    if (error != CL_SUCCESS) {
      std::vector<char> log(1 << 16);
      cl_.clGetProgramBuildInfo(program, device_, CL_PROGRAM_BUILD_LOG, log.size() - 1, log.data(),
                                nullptr);
      cl_.clReleaseProgram(program);
      throw DeviceError(text("[opencl] ", what, " does not build on ", name(), ": ", reason(error),
                             '\n', log.data()));
    }
    cl_kernel made = cl_.clCreateKernel(program, what.c_str(), &error);
    cl_.clReleaseProgram(program);
    check(error, what);
    return kernels_[kernel] = {made, 0};
  }

  const Api cl_;
  cl_device_id device_;
  cl_context context_{};
  cl_command_queue queue_{};
  std::map<Kernel, Built> kernels_;
  std::vector<void*> chunks_;
  std::vector<cl_event> events_;
  bool timing_ = false, split_products_ = false;
};

}  // namespace

std::vector<cl_device_id> find_devices(const Api& api) {
  cl_uint count = 0;
  check(api.clGetPlatformIDs(0, nullptr, &count), "clGetPlatformIDs");
  std::vector<cl_platform_id> platforms(count);
  if (count) check(api.clGetPlatformIDs(count, platforms.data(), nullptr), "clGetPlatformIDs");
  std::vector<cl_device_id> out;
  for (cl_platform_id platform : platforms) {
    cl_uint devices = 0;
    if (api.clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &devices)) continue;
    const size_t before = out.size();
    out.resize(before + devices);
    api.clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, devices, out.data() + before, nullptr);
  }
  std::stable_partition(out.begin(), out.end(),
                        [&](cl_device_id device) { return !is_cpu_device(api, device); });
  return out;
}

std::unique_ptr<portable::Driver> open_driver(const Api& api, int number) {
  const std::vector<cl_device_id> devices = find_devices(api);
  require<DeviceError>(static_cast<size_t>(number) < devices.size(), "opencl", "no device ", number,
                       ": ", devices.size(), " found, counted from 0; clinfo -l lists them");
  return std::make_unique<OpenClDriver>(api, devices[static_cast<size_t>(number)]);
}

}  // namespace plumb::opencl
