// PortableDevice: memory, queue and ops of a driver (driver.h), the same for all APIs.
#pragma once

#include <mutex>

#include "kernels/portable/pool.h"
#include "kernels/portable/portable_ops.h"

namespace plumb::portable {

// A driver with the memory that was taken from it.
struct Memory {
  std::unique_ptr<Driver> driver;
  Pool pool;
  std::mutex mutex;

  explicit Memory(std::unique_ptr<Driver> opened) : driver(std::move(opened)) {}
  ~Memory();
  uint64_t take(size_t bytes);
  void give(uint64_t at);
};

class PortableDevice final : public Device {
 public:
  // Throws DeviceError for a driver whose arithmetic loses infinities or NaN.
  PortableDevice(std::string name, std::unique_ptr<Driver> driver);

  std::string name() const override { return name_; }
  std::string describe() const override;
  Tensor allocate(DType dtype, const Shape& shape) override;
  void upload(const Tensor& to, const void* from) override;
  void download(void* to, const Tensor& from) override;
  void fill(const Tensor& t, uint8_t byte) override;
  void synchronize() override;
  double time(const std::function<void()>& queue_work) override;
  std::unique_ptr<Graph> capture(const std::function<void()>& queue_work) override;
  Ops& ops() override { return *ops_; }
  std::optional<DeviceCounters> counters() const override;
  bool checks_bounds() const override { return driver().checks_bounds(); }

  const Behaviour& behaviour() const { return behaviour_; }
  bool is_cpu() const { return driver().is_cpu(); }

 private:
  Driver& driver() const { return *memory_->driver; }
  void refuse_in_capture(const char* what) const;

  std::string name_;
  std::shared_ptr<Memory> memory_;
  Behaviour behaviour_;
  Tensor id_error_;
  std::unique_ptr<PortableOps> ops_;
  DeviceCounters counters_;
  bool capturing_ = false;
};

// Asks the driver's arithmetic with probe.k; `scratch` is 64 bytes of its memory.
Behaviour probe(Driver& driver, uint64_t scratch);
// "fma rounds once, subnormals are kept"
std::string describe(const Behaviour& behaviour);

}  // namespace plumb::portable
