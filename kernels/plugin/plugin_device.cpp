#include "kernels/plugin/plugin_device.h"

#include "kernels/core/error.h"

namespace plumb {
namespace {

// Tensors and memory belong to the inner device; only ops() is another.
class ReplacedDevice final : public Device {
 public:
  ReplacedDevice(std::unique_ptr<Device> inner, PluginLibraries plugins)
      : inner_(std::move(inner)),
        description_(describe(*inner_, plugins)),
        ops_(*inner_, &inner_->ops(), std::move(plugins)) {}

  static std::string describe(const Device& inner, const PluginLibraries& plugins) {
    std::string out = inner.describe();
    for (const auto& plugin : plugins) out += ", plugin " + plugin->file();
    return out;
  }

  std::string name() const override { return inner_->name(); }
  std::string describe() const override { return description_; }
  Tensor allocate(DType dtype, const Shape& shape) override {
    return inner_->allocate(dtype, shape);
  }
  void upload(const Tensor& to, const void* from) override { inner_->upload(to, from); }
  void download(void* to, const Tensor& from) override { inner_->download(to, from); }
  void fill(const Tensor& t, uint8_t byte) override { inner_->fill(t, byte); }
  uint64_t checksum(const Tensor& t) override { return inner_->checksum(t); }
  void synchronize() override {
    ops_.require_whole();
    inner_->synchronize();
  }
  double time(const std::function<void()>& queue_work) override { return inner_->time(queue_work); }
  Ops& ops() override {
    inner_->ops();  // makes a GPU the current one
    return ops_;
  }
  std::shared_ptr<Float64Products> float64_products() override {
    return inner_->float64_products();
  }
  const void* host_owner() const override { return inner_->host_owner(); }
  bool checks_bounds() const override { return inner_->checks_bounds(); }
  std::optional<DeviceCounters> counters() const override { return inner_->counters(); }

 private:
  std::unique_ptr<Device> inner_;
  std::string description_;
  PluginOps ops_;
};

class PluginStorage final : public Storage {
 public:
  PluginStorage(void* data, int64_t bytes, const void* owner,
                std::shared_ptr<const PluginLibrary> plugin)
      : Storage(data, bytes, owner), plugin_(std::move(plugin)) {}
  ~PluginStorage() override { plugin_->memory()->release(data); }

 private:
  std::shared_ptr<const PluginLibrary> plugin_;
};

class OwnDevice final : public Device {
 public:
  explicit OwnDevice(const std::shared_ptr<const PluginLibrary>& plugin)
      : plugin_(plugin), ops_(*this, nullptr, {plugin}) {}

  std::string name() const override { return plugin_->device(); }
  std::string describe() const override { return "plugin " + plugin_->file(); }

  Tensor allocate(DType dtype, const Shape& shape) override {
    int64_t bytes = 0;
    require(!__builtin_mul_overflow(shape.numel(), size_of(dtype), &bytes), "allocate", shape, ' ',
            name_of(dtype), " is larger than 2^63 bytes");
    void* data = nullptr;
    check("allocate", memory().allocate(&data, bytes > 0 ? bytes : 1));
    require<DeviceError>(data && reinterpret_cast<uintptr_t>(data) % 64 == 0, "allocate", where(),
                         "allocate gave ", data, ", expected memory aligned to 64 bytes");
    return Tensor(std::make_shared<PluginStorage>(data, bytes, this, plugin_), dtype, shape);
  }
  void upload(const Tensor& to, const void* from) override {
    if (to.bytes() > 0) check("upload", memory().upload(to.raw(), from, to.bytes()));
  }
  void download(void* to, const Tensor& from) override {
    if (from.bytes() > 0) check("download", memory().download(to, from.raw(), from.bytes()));
  }
  void fill(const Tensor& t, uint8_t byte) override {
    if (t.bytes() > 0) check("fill", memory().fill(t.raw(), byte, t.bytes()));
  }
  void synchronize() override { check("synchronize", memory().synchronize()); }
  Ops& ops() override { return ops_; }

 private:
  const plumb_memory& memory() const { return *plugin_->memory(); }
  std::string where() const { return "plugin " + plugin_->file() + ": "; }
  void check(const char* what, int code) const {
    require<DeviceError>(code == PLUMB_OK, what, where(), what, " returned ", code);
  }

  std::shared_ptr<const PluginLibrary> plugin_;
  PluginOps ops_;
};

}  // namespace

std::unique_ptr<Device> replace_ops(std::unique_ptr<Device> device, PluginLibraries plugins) {
  return std::make_unique<ReplacedDevice>(std::move(device), std::move(plugins));
}

std::string looser_contract(const Ops& ops, OpId op, DType storage) {
  const auto* replaced = dynamic_cast<const PluginOps*>(&ops);
  return replaced ? replaced->looser_contract(op, storage) : "";
}

std::unique_ptr<Device> open_plugin_device(const std::shared_ptr<const PluginLibrary>& plugin) {
  return std::make_unique<OwnDevice>(plugin);
}

}  // namespace plumb
