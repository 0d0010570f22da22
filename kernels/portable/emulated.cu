// The portable kernels on the emulated GPU (kernels/emu), which checks them for races and bounds: a
// driver in the words of gpu.h.
#include <cmath>

#include "kernels/gpu/gpu.h"
#include "kernels/portable/emulated.h"
#include "kernels/portable/portable_device.h"

#define STRUCT(name) struct name
#define END(name)

namespace plumb::PLUMB_GPU_VENDOR {
namespace portable_kernels {

using i32 = int32_t;
using i64 = int64_t;
using u32 = uint32_t;
using u64 = uint64_t;

#define THREADS 1
#define STORAGE 0
#define SHARED_ARRAYS
#include "kernels/portable/portable.h"
#include "kernels/portable/undefine.h"
#define PLUMB_COMMON_IS_DEFINED

struct Emitted {
  const char* name;
  int storage;
  void (*go)(Stream, unsigned, const void*);
};
#define EMIT(name, storage)                                                                   \
  {#name, storage, [](Stream stream, unsigned groups, const void* p) {                        \
     launch<name##_##storage::name>(#name, {groups}, {name##_##storage::kThreads}, 0, stream, \
                                    *static_cast<const name##_##storage::ArgumentsOf*>(p));   \
   }},
#include "emitted_kernels.h"  // every kernel for every storage, and kEmitted, a table of them

}  // namespace portable_kernels

namespace {

class EmulatedDriver final : public portable::Driver {
 public:
  EmulatedDriver() {
    use_device(32);
    stream_ = make_stream();
  }
  ~EmulatedDriver() override { end_stream(stream_); }

  std::string describe() const override {
    return "the portable kernels on the CPU, every access checked";
  }
  bool is_cpu() const override { return true; }
  bool checks_bounds() const override { return kChecksBounds; }
  uint64_t allocate(size_t bytes) override {
    return reinterpret_cast<uint64_t>(memory_allocate(bytes));
  }
  void release(uint64_t address) override { memory_free(pointer(address)); }
  void upload(uint64_t to, const void* from, size_t bytes) override {
    copy_to_device(pointer(to), from, bytes, stream_);
  }
  void download(void* to, uint64_t from, size_t bytes) override {
    copy_to_host(to, pointer(from), bytes, stream_);
  }
  void fill(uint64_t to, uint8_t byte, size_t bytes) override {
    memory_fill(pointer(to), byte, bytes, stream_);
  }
  void launch(const portable::Kernel& kernel, uint32_t groups, const void* arguments,
              size_t) override {
    for (const portable_kernels::Emitted& it : portable_kernels::kEmitted) {
      if (kernel.source->name == std::string(it.name) &&
          static_cast<int>(kernel.storage) == it.storage) {
        return it.go(stream_, groups, arguments);
      }
    }
    throw DeviceError(text("[portable] no emulated ", kernel.source->name));
  }
  void synchronize() override { wait_for(stream_); }
  double time(const std::function<void()>& queue_work) override {
    return seconds_on(stream_, queue_work);
  }

 private:
  static void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

  Stream stream_;
};

}  // namespace

std::unique_ptr<Device> open_portable(const std::string& name) {
  return std::make_unique<portable::PortableDevice>(name, std::make_unique<EmulatedDriver>());
}

}  // namespace plumb::PLUMB_GPU_VENDOR
