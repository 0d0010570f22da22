#include "kernels/cpu/cpu_device.h"

#include <cstring>

#include "kernels/core/error.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/onednn.h"

namespace plumb {
namespace {

class CpuDevice final : public Device {
 public:
  CpuDevice(const cpu::Simd& simd, int threads)
      : description_(describe(simd, threads)),
        ops_(*this, simd, threads, cpu::onednn::prepare(simd.name)) {}

  static std::string describe(const cpu::Simd& simd, int threads) {
    std::string line = text(cpu::processor_name(), ", ", simd.name, ", ", threads,
                            threads == 1 ? " thread" : " threads");
    if (cpu::onednn::prepare(simd.name)) line += ", oneDNN " + cpu::onednn::version();
    return line;
  }

  std::string name() const override { return "cpu"; }
  std::string describe() const override { return description_; }

  Tensor allocate(DType dtype, const Shape& shape) override {
    int64_t bytes = 0;
    require(!__builtin_mul_overflow(shape.numel(), size_of(dtype), &bytes), "allocate", shape, ' ',
            name_of(dtype), " is larger than 2^63 bytes");
    return Tensor(host_storage(bytes, this), dtype, shape);
  }
  void upload(const Tensor& to, const void* from) override {
    check(to, "upload");
    if (to.bytes() > 0) std::memcpy(to.raw(), from, static_cast<size_t>(to.bytes()));
  }
  void download(void* to, const Tensor& from) override {
    check(from, "download");
    if (from.bytes() > 0) std::memcpy(to, from.raw(), static_cast<size_t>(from.bytes()));
  }
  void fill(const Tensor& t, uint8_t byte) override {
    check(t, "fill");
    if (t.bytes() > 0) std::memset(t.raw(), byte, static_cast<size_t>(t.bytes()));
  }
  void synchronize() override {}  // ops have finished when they return

  Ops& ops() override { return ops_; }
  const void* host_owner() const override { return this; }

 private:
  void check(const Tensor& t, const char* what) const {
    require(t.defined() && t.storage().owner == this, what, "the tensor is not on device cpu");
    require(t.contiguous(), what, "the tensor of shape ", t.shape(), " is not contiguous");
  }

  const std::string description_;
  cpu::CpuOps ops_;
};

int thread_count(int threads) {
  require(threads >= 0 && threads <= 1024, "cpu", threads, " threads, expected 0 to 1024");
  return threads > 0 ? threads : usable_cores();
}

}  // namespace

std::unique_ptr<Device> open_cpu_device(int threads) {
  return open_cpu_device_of(cpu::choose_simd(), threads);
}

std::unique_ptr<Device> open_cpu_device_of(const cpu::Simd& simd, int threads) {
  return std::make_unique<CpuDevice>(simd, thread_count(threads));
}

std::string describe_cpu() { return CpuDevice::describe(cpu::choose_simd(), usable_cores()); }

}  // namespace plumb
