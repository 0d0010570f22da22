#include "harness/remote/remote_device.h"

#include <cstdlib>
#include <memory>

#include "harness/remote/python_texts.h"
#include "harness/remote/remote_worker.h"
#include "kernels/core/device_kinds.h"
#include "kernels/core/error.h"
#include "kernels/core/host_device.h"
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

class RemoteDevice final : public HostDevice {
 public:
  RemoteDevice(std::string name, const char* kind, std::vector<std::string> command)
      : name_(std::move(name)), worker_(name_, std::move(command)), ops_(*this, worker_, kind) {}

  std::string name() const override { return name_; }
  std::string describe() const override {
    return text(worker_.hello().name, ", ", worker_.hello().ops.size(), " ops");
  }
  Ops& ops() override { return ops_; }

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
