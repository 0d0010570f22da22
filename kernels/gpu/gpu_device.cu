#include "kernels/core/error.h"
#include "kernels/gpu/float64_products.h"
#include "kernels/gpu/gpu_device.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int64_t kGranule = 256;  // bytes

class PooledStorage final : public Storage {
 public:
  PooledStorage(std::shared_ptr<MemoryPool> pool, void* data, int64_t bytes, int64_t held,
                const void* owner)
      : Storage(data, bytes, owner), pool_(std::move(pool)), held_(held) {}
  ~PooledStorage() override { pool_->give(data, held_); }

 private:
  std::shared_ptr<MemoryPool> pool_;
  int64_t held_;  // bytes, rounded up
};

class GpuGraph final : public Graph {
 public:
  GpuGraph(int ordinal, GpuOps& ops, GraphHandle handle)
      : ordinal_(ordinal), ops_(ops), handle_(handle), writes_(ops.in_flight()) {}
  ~GpuGraph() override { end_graph(handle_); }
  void replay() override {
    use_device(ordinal_);
    launch_graph(handle_, ops_.stream());
    ops_.in_flight().note(writes_);
  }

 private:
  int ordinal_;
  GpuOps& ops_;
  GraphHandle handle_;
  InFlight writes_;  // at least
};

}  // namespace

MemoryPool::~MemoryPool() {
  for (const auto& [bytes, p] : free_) memory_free(p);
}

void* MemoryPool::take(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = free_.find(bytes);
  if (found != free_.end()) {
    void* p = found->second;
    free_.erase(found);
    return p;
  }
  ++allocations_;
  try {
    return memory_allocate(static_cast<size_t>(bytes));
  } catch (const DeviceError&) {
    // What is kept may be what is missing.
  }
  give_back_();
  for (const auto& [size, p] : free_) memory_free(p);
  free_.clear();
  return memory_allocate(static_cast<size_t>(bytes));
}

void MemoryPool::give(void* p, int64_t bytes) {
  if (kExactMemory) return memory_free(p);
  const std::lock_guard lock(mutex_);
  free_.emplace(bytes, p);
}

GpuDevice::GpuDevice(std::string name, std::string description, int ordinal)
    : name_(std::move(name)),
      description_(std::move(description)),
      ordinal_(ordinal),
      pool_(std::make_shared<MemoryPool>()) {
  use_device(ordinal_);
  stream_ = make_stream();
  id_error_ = allocate(DType::u8, {int64_t{sizeof(IdError)}});
  fill(id_error_, 0);
  const int multiprocessors = count_multiprocessors(ordinal_);
  tickets_ = allocate(DType::u8, {int64_t{GpuOps::kTickets} * multiprocessors *
                                  static_cast<int64_t>(sizeof(unsigned))});
  fill(tickets_, 0);
  ops_ = std::make_unique<GpuOps>(*this, stream_, id_error_.data<IdError>(),
                                  tickets_.data<unsigned>(), multiprocessors);
  synchronize();
  counters_ = {};
}

GpuDevice::~GpuDevice() {
  ops_.reset();
  end_stream(stream_);
}

void GpuDevice::begin(const char* what) {
  require(!capturing_, what, "while launches are recorded: only kernels can be replayed");
  use_device(ordinal_);
}

Tensor GpuDevice::allocate(DType dtype, const Shape& shape) {
  begin("allocate");
  int64_t bytes = 0;
  require(!__builtin_mul_overflow(shape.numel(), size_of(dtype), &bytes) &&
              bytes < INT64_MAX - kGranule,
          "allocate", shape, ' ', name_of(dtype), " is larger than 2^63 bytes");
  const int64_t held = kExactMemory ? bytes : (bytes / kGranule + 1) * kGranule;
  void* data = pool_->take(held);
  return Tensor(std::make_shared<PooledStorage>(pool_, data, bytes, held, this), dtype, shape);
}

void GpuDevice::upload(const Tensor& to, const void* from) {
  begin("upload");
  if (to.bytes() == 0) return;
  ++counters_.copies;
  copy_to_device(to.raw(), from, static_cast<size_t>(to.bytes()), stream());
  ops_->in_flight().clear();
}

void GpuDevice::download(void* to, const Tensor& from) {
  begin("download");
  if (from.bytes() == 0) return;
  ++counters_.copies;
  copy_to_host(to, from.raw(), static_cast<size_t>(from.bytes()), stream());
  ops_->in_flight().clear();
}

void GpuDevice::fill(const Tensor& t, uint8_t byte) {
  use_device(ordinal_);
  if (t.bytes() == 0) return;
  // What is held back may as well come behind, and join what follows: scratch memory is filled
  // before each of its uses where reads of what was never written are looked for.
  const bool apart = ops_ && !ops_->held().touches(t);
  memory_fill(t.raw(), byte, static_cast<size_t>(t.bytes()), apart ? stream_ : stream());
}

void GpuDevice::synchronize() {
  begin("synchronize");
  ++counters_.waits;
  IdError error{};
  copy_to_host(&error, id_error_.raw(), sizeof error, stream());
  ops_->in_flight().clear();
  if (error.count == 0) return;
  fill(id_error_, 0);
  throw UsageError(unknown_id(error.op, error.id, error.place, error.extent));
}

double GpuDevice::time(const std::function<void()>& queue_work) {
  synchronize();
  const double seconds = seconds_on(stream(), [&] {
    queue_work();
    stream();
  });
  synchronize();
  return seconds;
}

std::unique_ptr<Graph> GpuDevice::capture(const std::function<void()>& queue_work) {
  begin("capture");
  begin_capture(stream());
  capturing_ = true;
  try {
    queue_work();
    stream();
  } catch (...) {
    capturing_ = false;
    ops_->held().forget();
    abandon_capture(stream_);
    throw;
  }
  capturing_ = false;
  return std::make_unique<GpuGraph>(ordinal_, *ops_, end_capture(stream_));
}

std::shared_ptr<Float64Products> GpuDevice::float64_products() {
  if (products_) return products_;
  products_ = open_float64_products(name_, ordinal_);
  if (products_) pool_->ask_when_short([products = products_] { products->give_back(); });
  return products_;
}

std::optional<DeviceCounters> GpuDevice::counters() const {
  DeviceCounters out = counters_;
  out.allocations = pool_->allocations();
  return out;
}

}  // namespace plumb::PLUMB_GPU_VENDOR
