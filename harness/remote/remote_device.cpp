#include "harness/remote/remote_device.h"

#include <cstdlib>
#include <cstring>
#include <memory>

#include "harness/remote/python_texts.h"
#include "harness/remote/remote_worker.h"
#include "kernels/core/device_kinds.h"
#include "kernels/core/error.h"
#include "kernels/ops/broadcast.h"
#include "kernels/ops/ops.h"

namespace plumb::harness {
namespace {

std::vector<Implementation> implementations_of(const RemoteHello& hello, const char* kind) {
  std::vector<Implementation> out;
  for (const auto& [op, contract] : hello.ops) out.push_back({op, {kind, {}}});
  return out;
}

class RemoteOps final : public Ops {
 public:
  RemoteOps(Device& device, RemoteWorker& worker, const char* kind)
      : Ops(device, implementations_of(worker.hello(), kind)), worker_(worker), kind_(kind) {}

  Contract contract(OpId op, DType storage) const override {
    const auto found = worker_.hello().ops.find(op);
    Contract out = found == worker_.hello().ops.end() ? Contract{} : found->second;
    out.storage = out.multiply = storage;
    return out;
  }
  bool overrides(OpId op) const override {
    return is_fused(op) && worker_.hello().ops.contains(op);
  }

 private:
  void do_call(const OpCall& call) override {
    const std::string where = text('[', name_of(call.op), "] ", device().name(), ": ");
    if (!worker_.hello().ops.contains(call.op)) throw Unsupported(where + "has no such op");
    settle_for(kind_);
    for (const OpCall& one : call.singles()) worker_.run(with_equal_shapes(one), where);
  }

  RemoteWorker& worker_;
  const char* kind_;
};

// Its tensors are in the host's memory.
class RemoteDevice final : public Device {
 public:
  RemoteDevice(std::string name, const char* kind, std::vector<std::string> command)
      : name_(std::move(name)), worker_(name_, std::move(command)), ops_(*this, worker_, kind) {}

  std::string name() const override { return name_; }
  std::string describe() const override {
    return text(worker_.hello().name, ", ", worker_.hello().ops.size(), " ops");
  }
  Tensor allocate(DType dtype, const Shape& shape) override {
    int64_t bytes = 0;
    require(!__builtin_mul_overflow(shape.numel(), size_of(dtype), &bytes), "allocate", shape,
            " is larger than 2^63 bytes");
    return Tensor(host_storage(bytes, this), dtype, shape);
  }
  void upload(const Tensor& to, const void* from) override {
    if (to.bytes() > 0) std::memcpy(to.raw(), from, static_cast<size_t>(to.bytes()));
  }
  void download(void* to, const Tensor& from) override {
    if (from.bytes() > 0) std::memcpy(to, from.raw(), static_cast<size_t>(from.bytes()));
  }
  void fill(const Tensor& t, uint8_t byte) override {
    if (t.bytes() > 0) std::memset(t.raw(), byte, static_cast<size_t>(t.bytes()));
  }
  void synchronize() override {}
  Ops& ops() override { return ops_; }
  const void* host_owner() const override { return this; }

 private:
  std::string name_;
  RemoteWorker worker_;
  RemoteOps ops_;
};

std::string behind_colon(const std::string& name, const char* what) {
  const size_t colon = name.find(':');
  const bool given = colon != std::string::npos && colon + 1 < name.size();
  require(given, "device", name, " names no ", what, ": ", name.substr(0, colon), ':', what);
  return name.substr(colon + 1);
}

// One program takes the place of the shell: how it ends is seen.
std::unique_ptr<Device> open_exec(const std::string& name, int) {
  const std::string command = behind_colon(name, "COMMAND");
  const bool one = command.find_first_of("&|;") == std::string::npos;
  return std::make_unique<RemoteDevice>(
      name, "exec", std::vector<std::string>{"/bin/sh", "-c", (one ? "exec " : "") + command});
}

std::unique_ptr<Device> open_python(const std::string& name, int) {
  const char* python = std::getenv("PLUMB_PYTHON");
  return std::make_unique<RemoteDevice>(
      name, "python",
      std::vector<std::string>{python ? python : "python3", "-c", std::string(kServeText),
                               behind_colon(name, "MODULE"), std::string(kNumpyOpsText)});
}

}  // namespace

void know_remote_devices() {
  add_device_kind("exec", open_exec);
  add_device_kind("python", open_python);
}

}  // namespace plumb::harness
