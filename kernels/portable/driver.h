// Driver: what the portable kernels need of an API such as OpenCL or Vulkan: memory with 64-bit
// addresses, and launches in order. PortableDevice is everything else, the same for all APIs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kernels/core/device.h"

namespace plumb::portable {

// How a kernel reads and writes elements: STORAGE of portable.h.
enum class Storage { f32, bf16, f16 };
inline constexpr int kStorages = 3;

// A kernel file (*.k), as the build embedded it.
struct KernelSource {
  const char* name;  // that of the file, and of its KERNEL
  int threads;       // of a group: its THREADS
  const char* text;  // with its includes in place; STORAGE is still to be defined
};

// The kernel of that name; throws DeviceError where the build has none.
const KernelSource& kernel_source(const std::string& name);

// A kernel as a driver builds it: once each, when it is first launched.
struct Kernel {
  const KernelSource* source;
  Storage storage;
  int variant = 0;  // VARIANT of portable.h, which formula for example: a driver may build it in

  auto operator<=>(const Kernel&) const = default;
};

// What the arithmetic of a device does where the standards leave it open: asked by probe.k when the
// device is opened.
struct Behaviour {
  bool fma_rounds_once = true;
  bool keeps_subnormals = true;
  bool keeps_infinities = true;  // and NaN
};

class Driver {
 public:
  virtual ~Driver() = default;

  // "NVIDIA H200, OpenCL 3.0, driver 580.159.04"
  virtual std::string describe() const = 0;
  // Whether the CPU does the work, as with PoCL and lavapipe.
  virtual bool is_cpu() const = 0;
  // Why kernels of that storage cannot run, for example "NAME has no 16-bit storage"; empty if they
  // can.
  virtual std::string lacks(Storage) const { return {}; }
  // Whether a kernel that touches a byte outside of what allocate() gave ends with a DeviceError:
  // every tensor is then a chunk of its own.
  virtual bool checks_bounds() const { return false; }
  // fma rounds twice: kernels launched from now on make the exact product of two factors otherwise.
  virtual void use_split_products() {}

  // A chunk of memory, 256-byte aligned; throws DeviceError when there is none. The pool makes
  // tensors of chunks.
  virtual uint64_t allocate(size_t bytes) = 0;
  virtual void release(uint64_t address) = 0;

  // These wait for the queue; `to` and `from` are addresses inside chunks.
  virtual void upload(uint64_t to, const void* from, size_t bytes) = 0;
  virtual void download(void* to, uint64_t from, size_t bytes) = 0;
  virtual void fill(uint64_t to, uint8_t byte, size_t bytes) = 0;

  // Queues `groups` groups of the kernel's threads. `arguments` is copied: a struct of arguments.h,
  // of `bytes` bytes.
  virtual void launch(const Kernel& kernel, uint32_t groups, const void* arguments,
                      size_t bytes) = 0;
  virtual void synchronize() = 0;
  // Seconds of the device's own clock that the work takes; waits for it.
  virtual double time(const std::function<void()>& queue_work) = 0;
  // What `queue_work` launches, recorded; null where the API has no such thing.
  virtual std::unique_ptr<Graph> capture(const std::function<void()>&) { return nullptr; }
};

}  // namespace plumb::portable
