#include "kernels/portable/portable_device.h"

#include "kernels/ops/ids.h"

namespace plumb::portable {
namespace {

class ChunkStorage final : public plumb::Storage {
 public:
  ChunkStorage(std::shared_ptr<Memory> memory, uint64_t at, int64_t bytes, const void* owner)
      : plumb::Storage(reinterpret_cast<void*>(at), bytes, owner), memory_(std::move(memory)) {}
  ~ChunkStorage() override { memory_->give(reinterpret_cast<uint64_t>(data)); }

 private:
  std::shared_ptr<Memory> memory_;
};

}  // namespace

Memory::~Memory() {
  for (const auto& [at, bytes] : pool.chunks()) driver->release(at);
}

uint64_t Memory::take(size_t bytes) {
  if (driver->checks_bounds()) return driver->allocate(bytes);
  const std::lock_guard lock(mutex);
  return pool.take(bytes, [&](size_t chunk) { return driver->allocate(chunk); });
}

void Memory::give(uint64_t at) {
  if (driver->checks_bounds()) return driver->release(at);
  const std::lock_guard lock(mutex);
  pool.give(at);
}

PortableDevice::PortableDevice(std::string name, std::unique_ptr<Driver> driver)
    : name_(std::move(name)), memory_(std::make_shared<Memory>(std::move(driver))) {
  id_error_ = allocate(DType::u8, {int64_t{sizeof(IdError)}});
  const Tensor scratch = allocate(DType::u8, {64});
  behaviour_ = probe(this->driver(), reinterpret_cast<uint64_t>(scratch.raw()));
  if (!behaviour_.fma_rounds_once) this->driver().use_split_products();
  require<DeviceError>(behaviour_.keeps_infinities, "device", name_, ": ",
                       this->driver().describe(),
                       ": its arithmetic loses infinities or NaN, which masks need");
  fill(id_error_, 0);
  ops_ = std::make_unique<PortableOps>(*this, this->driver(), address(id_error_));
  counters_ = {};
}

std::string PortableDevice::describe() const {
  return driver().describe() + ", " + portable::describe(behaviour_);
}

void PortableDevice::refuse_in_capture(const char* what) const {
  require(!capturing_, what, "while launches are recorded: only kernels can be replayed");
}

Tensor PortableDevice::allocate(DType dtype, const Shape& shape) {
  refuse_in_capture("allocate");
  int64_t bytes = 0;
  require(!__builtin_mul_overflow(shape.numel(), size_of(dtype), &bytes) && bytes < INT64_MAX / 2,
          "allocate", shape, ' ', name_of(dtype), " is larger than 2^62 bytes");
  const uint64_t at = memory_->take(static_cast<size_t>(bytes));
  return Tensor(std::make_shared<ChunkStorage>(memory_, at, bytes, this), dtype, shape);
}

void PortableDevice::upload(const Tensor& to, const void* from) {
  refuse_in_capture("upload");
  if (to.bytes() == 0) return;
  ++counters_.copies;
  driver().upload(address(to), from, static_cast<size_t>(to.bytes()));
}

void PortableDevice::download(void* to, const Tensor& from) {
  refuse_in_capture("download");
  if (from.bytes() == 0) return;
  ++counters_.copies;
  driver().download(to, address(from), static_cast<size_t>(from.bytes()));
}

void PortableDevice::fill(const Tensor& t, uint8_t byte) {
  if (t.bytes() == 0) return;
  driver().fill(address(t), byte, static_cast<size_t>(t.bytes()));
}

void PortableDevice::synchronize() {
  refuse_in_capture("synchronize");
  ++counters_.waits;
  driver().synchronize();
  IdError error{};
  driver().download(&error, address(id_error_), sizeof error);
  if (error.count == 0) return;
  fill(id_error_, 0);
  throw UsageError(unknown_id(static_cast<OpId>(error.op), error.id, error.place, error.extent));
}

double PortableDevice::time(const std::function<void()>& queue_work) {
  synchronize();
  const double seconds = driver().time(queue_work);
  synchronize();
  return seconds;
}

std::unique_ptr<Graph> PortableDevice::capture(const std::function<void()>& queue_work) {
  refuse_in_capture("capture");
  capturing_ = true;
  try {
    std::unique_ptr<Graph> out = driver().capture(queue_work);
    capturing_ = false;
    return out;
  } catch (...) {
    capturing_ = false;
    throw;
  }
}

std::optional<DeviceCounters> PortableDevice::counters() const {
  DeviceCounters out = counters_;
  out.allocations = static_cast<int64_t>(memory_->pool.chunks().size());
  return out;
}

}  // namespace plumb::portable
