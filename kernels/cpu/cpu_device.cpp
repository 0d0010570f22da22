#include "kernels/cpu/cpu_device.h"

#include "kernels/core/error.h"
#include "kernels/core/host_device.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/onednn.h"

namespace plumb {
namespace {

class CpuDevice final : public HostDevice {
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

  Ops& ops() override { return ops_; }

 private:
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
