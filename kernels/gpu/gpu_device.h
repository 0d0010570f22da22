// GpuDevice: memory and queue of one GPU (or of the emulator), the same for every vendor.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gpu/gpu_ops.h"

namespace plumb::PLUMB_GPU_VENDOR {

// Freed blocks by size, kept for the next allocation: buffers of one size come and go with every
// checkpoint, and an allocation waits for the whole GPU.
class MemoryPool {
 public:
  ~MemoryPool();
  void* take(int64_t bytes);  // 256-byte aligned; throws DeviceError when there is no memory
  void give(void* p, int64_t bytes);
  // What else may give memory back when there is none.
  void ask_when_short(std::function<void()> give_back) { give_back_ = std::move(give_back); }
  int64_t allocations() const { return allocations_; }  // that reached the driver

 private:
  std::mutex mutex_;
  std::multimap<int64_t, void*> free_;
  std::function<void()> give_back_ = [] {};
  int64_t allocations_ = 0;
};

class GpuDevice final : public Device {
 public:
  GpuDevice(std::string name, std::string description, int ordinal);
  ~GpuDevice() override;

  std::string name() const override { return name_; }
  std::string describe() const override { return description_; }
  Tensor allocate(DType dtype, const Shape& shape) override;
  void upload(const Tensor& to, const void* from) override;
  void download(void* to, const Tensor& from) override;
  void fill(const Tensor& t, uint8_t byte) override;
  uint64_t checksum(const Tensor& t) override;
  void synchronize() override;
  double time(const std::function<void()>& queue_work) override;
  std::unique_ptr<Graph> capture(const std::function<void()>& queue_work) override;
  Ops& ops() override {
    use_device(ordinal_);  // launches go to the current device
    return *ops_;
  }

  std::shared_ptr<Float64Products> float64_products() override;
  std::optional<DeviceCounters> counters() const override;
  void* queue() override { return stream(); }
  bool checks_bounds() const override { return kChecksBounds; }
  Stream stream() const { return ops_ ? ops_->stream() : stream_; }

 private:
  // Makes the GPU the current one; throws UsageError for what cannot be recorded.
  void begin(const char* what);

  std::string name_, description_;
  int ordinal_;
  std::shared_ptr<MemoryPool> pool_;
  Stream stream_{};
  Tensor id_error_, tickets_;
  std::unique_ptr<GpuOps> ops_;
  DeviceCounters counters_;
  bool capturing_ = false;
  std::shared_ptr<Float64Products> products_;
};

}  // namespace plumb::PLUMB_GPU_VENDOR
