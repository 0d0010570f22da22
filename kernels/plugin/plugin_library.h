// A plugin's shared library: loaded, checked once, and callable without trusting it further.
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <string_view>

#include "kernels/ops/contract.h"
#include "kernels/ops/op_id.h"
#include "kernels/plugin.h"

namespace plumb {

class PluginLibrary {
 public:
  // Loads the library, which stays loaded for good, and checks what it says of itself. Throws
  // BadInput naming the file, the field, what it is and what it must be.
  explicit PluginLibrary(const std::filesystem::path& path);
  // The same of a plugin in this program, which must outlive it; `file` is its name in errors.
  PluginLibrary(const plumb_plugin& plugin, std::string file);

  const std::string& file() const { return file_; }
  std::string_view name() const { return plugin_->name; }
  std::string device() const { return plugin_->device; }
  const plumb_memory* memory() const { return plugin_->memory; }  // null: it replaces ops
  std::string_view impl() const { return impl_; }                 // "plugin:NAME"

  // The plugin's version of an op, or null.
  const plumb_op* op(OpId op) const { return ops_[static_cast<size_t>(op)]; }
  Contract contract(OpId op, DType storage) const;  // of one that it has

 private:
  [[noreturn]] void reject(const std::string& what) const;
  void accept();
  void check_names() const;
  void check_memory() const;
  void read_ops();

  std::string file_, impl_;
  const plumb_plugin* plugin_ = nullptr;
  std::array<const plumb_op*, kOpCount> ops_{};
};

}  // namespace plumb
