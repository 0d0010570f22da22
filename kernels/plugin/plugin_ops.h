// The ops of a device with plugins: each is the plugin's where one has it, else the device's own.
#pragma once

#include <memory>
#include <vector>

#include "kernels/ops/ops.h"
#include "kernels/plugin/guarded_pages.h"
#include "kernels/plugin/plugin_library.h"

namespace plumb {

using PluginLibraries = std::vector<std::shared_ptr<const PluginLibrary>>;

class PluginOps final : public Ops {
 public:
  // `device` owns the tensors. `inner`: its own ops, null for a device that a plugin makes. No two
  // plugins may have the same op.
  PluginOps(Device& device, Ops* inner, PluginLibraries plugins);

  Contract contract(OpId op, DType storage) const override;
  // plugin_device.h
  std::string looser_contract(OpId op, DType storage) const;
  bool overrides(OpId op) const override;
  void force(const std::string& regex) override;
  bool confine(std::optional<PageEnd> end) override {
    end_ = end;
    return device().host_owner() != nullptr;
  }
  // Throws DeviceError once a thread of a plugin was stopped in the middle.
  void require_whole() const;

 private:
  const PluginLibrary* plugin_for(OpId op) const;
  const PluginLibrary* plugin_that_runs(OpId op) const;  // or null: --impl leaves the inner one
  // The plugin's version of the op if it has one and --impl leaves it, else the inner device's.
  void do_call(const OpCall& call) override;
  void run(const PluginLibrary& plugin, const OpCall& call);
  void run_confined(const PluginLibrary& plugin, const OpCall& call);

  Ops* inner_;
  std::vector<OpRecord> inner_records_;  // of the call that runs
  PluginLibraries plugins_;
  std::optional<PageEnd> end_;  // of their pages, where operands are separated
  PagePool pages_;
  bool broken_ = false;
};

}  // namespace plumb
