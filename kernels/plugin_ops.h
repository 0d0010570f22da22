// The ops of a device with plugins: each is the plugin's where one has it, else the device's own.
#pragma once

#include <memory>
#include <vector>

#include "kernels/ops.h"
#include "kernels/plugin_library.h"

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

 private:
  const PluginLibrary* plugin_for(OpId op) const;
  const PluginLibrary* plugin_that_runs(OpId op) const;  // or null: --impl leaves the inner one
  // The plugin's version of the op if it has one and --impl leaves it, else the inner device's.
  void do_call(const OpCall& call) override;
  void run(const PluginLibrary& plugin, const OpCall& call);

  Ops* inner_;
  std::vector<OpRecord> inner_records_;  // of the call that runs
  PluginLibraries plugins_;
};

}  // namespace plumb
