#include "kernels/plugin/plugin_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cctype>

#include "kernels/core/error.h"
#include "kernels/ops/table.h"

namespace plumb {
namespace {

constexpr const char* kEntry = "plumb_plugin_entry";

std::string_view error_of_dl() {
  const char* message = dlerror();
  return message ? message : "no reason given";
}

// Letters, digits and what `others` has.
bool made_of(const char* name, std::string_view others) {
  return name && *name && std::all_of(name, name + std::string_view(name).size(), [&](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                  others.find(c) != std::string_view::npos;
         });
}

// Ops whose parameters a library of version 1 cannot find.
bool needs_version_2(OpId op) {
  switch (op) {
    case OpId::position_ids:
    case OpId::affine:
    case OpId::causal_conv1d:
    case OpId::ssd_scan:
    case OpId::gated_rms_norm:
    case OpId::gated_rms_norm_backward:
    case OpId::embedding_backward:
    case OpId::cross_entropy:
    case OpId::cross_entropy_backward:
    case OpId::linear_cross_entropy:
    case OpId::linear_cross_entropy_backward:
    case OpId::causal_conv1d_backward:
    case OpId::ssd_scan_backward:
    case OpId::gemm:
    case OpId::group_norm:
    case OpId::permute:
    case OpId::pad:
    case OpId::flip:
    case OpId::roll:
    case OpId::top_k:
    case OpId::arange:
    case OpId::uniform:
    case OpId::normal:
    case OpId::max_pool2d:
    case OpId::avg_pool2d:
    case OpId::conv1d:
    case OpId::conv2d:
    case OpId::conv_transpose1d:
    case OpId::conv_transpose2d:
    case OpId::dequantize:
    case OpId::quantize:
    case OpId::quantised_linear: return true;
    default: return row_of(op).reduction || row_of(op).along_axis;
  }
}

std::string known_ops() {
  std::string out;
  for (int i = 0; i < kOpCount; ++i) {
    out += text(out.empty() ? "" : ", ", name_of(static_cast<OpId>(i)));
  }
  return out;
}

}  // namespace

PluginLibrary::PluginLibrary(const std::filesystem::path& path)
    : file_(std::filesystem::absolute(path).lexically_normal().string()) {
  if (!std::filesystem::is_regular_file(file_)) reject("is not a file");
  void* library = dlopen(file_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) reject(text("cannot be loaded: ", error_of_dl()));
  void* symbol = dlsym(library, kEntry);
  if (!symbol) {
    reject(text("has no symbol ", kEntry,
                ": define it as kernels/plugin.h declares it, extern \"C\""));
  }
  plugin_ = reinterpret_cast<const plumb_plugin* (*)()>(symbol)();
  if (!plugin_) reject(text(kEntry, " returned null"));
  accept();
}

PluginLibrary::PluginLibrary(const plumb_plugin& plugin, std::string file)
    : file_(std::move(file)), plugin_(&plugin) {
  accept();
}

void PluginLibrary::accept() {
  if (plugin_->version < 1 || plugin_->version > PLUMB_PLUGIN_VERSION) {
    reject(text("version is ", plugin_->version, ", this harness takes 1 to ",
                int{PLUMB_PLUGIN_VERSION}, ": build it against this version's kernels/plugin.h"));
  }
  check_names();
  if (plugin_->memory) check_memory();
  read_ops();
  impl_ = text("plugin:", plugin_->name);
}

void PluginLibrary::reject(const std::string& what) const {
  throw BadInput(text("[plugin] ", file_, ": ", what));
}

void PluginLibrary::check_names() const {
  if (!made_of(plugin_->name, "_-")) {
    reject("name is missing or has other characters than letters, digits, _ and -");
  }
  if (!made_of(plugin_->device, "_-:")) {
    reject("device is missing or has other characters than letters, digits, _, - and :");
  }
  if (std::string_view(plugin_->device) == "oracle") {
    reject("device is \"oracle\", which is the referee; replace ops of another device");
  }
}

void PluginLibrary::check_memory() const {
  const plumb_memory& m = *plugin_->memory;
  const std::pair<const char*, bool> functions[] = {
      {"allocate", m.allocate != nullptr}, {"release", m.release != nullptr},
      {"upload", m.upload != nullptr},     {"download", m.download != nullptr},
      {"fill", m.fill != nullptr},         {"synchronize", m.synchronize != nullptr}};
  for (const auto& [name, given] : functions) {
    if (!given)
      reject(text("memory.", name, " is null; a device of its own needs all six functions"));
  }
}

void PluginLibrary::read_ops() {
  if (plugin_->op_count < 1 || plugin_->op_count > kOpCount || !plugin_->ops) {
    reject(text("op_count is ", plugin_->op_count, ", expected 1 to ", kOpCount, ", with ops"));
  }
  for (int32_t i = 0; i < plugin_->op_count; ++i) {
    const plumb_op& op = plugin_->ops[i];
    const std::string where = text("ops[", i, "]");
    if (!op.name) reject(where + ".name is null");
    int found = 0;
    const auto matches = [&](OpId id) { return name_of(id) == op.name; };
    while (found < kOpCount && !matches(static_cast<OpId>(found))) ++found;
    if (found == kOpCount) {
      reject(text(where, ".name is \"", std::string_view(op.name).substr(0, 60),
                  "\", which is no op; known: ", known_ops()));
    }
    if (plugin_->version < 2 && needs_version_2(static_cast<OpId>(found))) {
      reject(text(where, ": ", op.name, " has parameters that version ", plugin_->version,
                  " does not pass: build it against this version's kernels/plugin.h"));
    }
    if (ops_[static_cast<size_t>(found)]) reject(text(where, ": ", op.name, " is there twice"));
    if (!op.run) reject(text(where, " (", op.name, "): run is null"));
    const plumb_contract& c = op.contract;
    if (c.accumulator_bits < 2 || c.accumulator_bits > 53) {
      reject(text(where, " (", op.name, "): contract.accumulator_bits is ", c.accumulator_bits,
                  ", expected 2 to 53: 24 for float sums, 53 for double"));
    }
    if (c.truncated_block < 0 || c.fused < 0 || c.fused > 1) {
      reject(text(where, " (", op.name, "): contract.truncated_block is ", c.truncated_block,
                  ", expected 0 or more; fused is ", c.fused, ", expected 0 or 1"));
    }
    ops_[static_cast<size_t>(found)] = &op;
  }
}

Contract PluginLibrary::contract(OpId id, DType storage) const {
  const plumb_contract& c = op(id)->contract;
  Accumulator sums;
  sums.bits = c.accumulator_bits;
  if (c.truncated_block > 0) sums = {sums.bits, SumRounding::toward_zero, c.truncated_block};
  return {storage, storage, sums, c.fused ? RoundingPoints::fused : RoundingPoints::eager};
}

}  // namespace plumb
