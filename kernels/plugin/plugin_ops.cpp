#include "kernels/plugin/plugin_ops.h"

#include <algorithm>
#include <cstdio>
#include <functional>

#include "kernels/core/error.h"
#include "kernels/ops/broadcast.h"
#include "kernels/plugin/access_fault.h"
#include "kernels/plugin/call_params.h"
#include "kernels/plugin/confined_call.h"

namespace plumb {
namespace {

constexpr int64_t kErrorBytes = 512;

static_assert(kMaxRank == PLUMB_MAX_RANK);

int32_t code_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return PLUMB_F64;
    case DType::f32: return PLUMB_F32;
    case DType::f16: return PLUMB_F16;
    case DType::bf16: return PLUMB_BF16;
    case DType::i64: return PLUMB_I64;
    case DType::i32: return PLUMB_I32;
    case DType::u32: return PLUMB_U32;
    case DType::boolean: return PLUMB_BOOL;
    case DType::u8: return PLUMB_U8;
    case DType::i8: return PLUMB_I8;
    case DType::f8_e4m3: return PLUMB_F8_E4M3;
    case DType::f8_e5m2: return PLUMB_F8_E5M2;
  }
  return -1;
}

plumb_tensor c_tensor(const Tensor& t) {
  plumb_tensor out{};
  if (!t.defined()) return out;
  out.data = t.raw();
  out.dtype = code_of(t.dtype());
  out.rank = t.rank();
  for (int axis = 0; axis < t.rank(); ++axis) {
    out.shape[axis] = t.dim(axis);
    out.stride[axis] = t.stride(axis);
  }
  return out;
}

// What plumb_call::scratch finds behind its context.
using Scratch = std::function<void*(int64_t bytes)>;

void* take_scratch(const plumb_call* call, int64_t bytes) noexcept {
  try {
    return bytes < 0 ? nullptr
                     : (*static_cast<Scratch*>(call->context))(std::max<int64_t>(bytes, 1));
  } catch (...) {
    return nullptr;
  }
}

// The plugin's names before the device's, which --impl can still choose.
std::vector<Implementation> all_names(const Ops* inner, const PluginLibraries& plugins) {
  std::vector<Implementation> out;
  for (const auto& plugin : plugins) {
    for (int i = 0; i < kOpCount; ++i) {
      const auto op = static_cast<OpId>(i);
      if (plugin->op(op)) out.push_back({op, {plugin->impl(), {}}});
    }
  }
  if (inner)
    out.insert(out.end(), inner->implementations().begin(), inner->implementations().end());
  return out;
}

// One call of a plugin. What run() has on its stack owns nothing: it may be left in the middle.
class PluginCall {
 public:
  // data: the address of each operand.
  PluginCall(const OpCall& op_call, void* stream, const std::function<void*(size_t)>& data,
             Scratch scratch)
      : scratch_(std::move(scratch)) {
    const std::vector<Tensor> tensors = op_call.tensors();
    std::transform(tensors.begin(), tensors.end(), operands_.begin(), c_tensor);
    for (size_t i = 0; i < tensors.size(); ++i) operands_[i].data = data(i);
    call_.tensors = operands_.data();
    call_.count = static_cast<int32_t>(tensors.size());
    const CallParams params = params_of(op_call);
    call_.params = params.first;
    call_.more = params.more;
    call_.stream = stream;
    call_.scratch = take_scratch;
    call_.context = &scratch_;
    call_.error = error_.data();
    call_.error_bytes = kErrorBytes;
  }
  PluginCall(const PluginCall&) = delete;
  PluginCall& operator=(const PluginCall&) = delete;

  void run(const plumb_op& op) {
    code_ = PLUMB_FAILED;
    try {
      code_ = op.run(&call_);
    } catch (const std::exception& thrown) {
      std::snprintf(error_.data(), kErrorBytes, "%s", thrown.what());
    } catch (...) {
      std::snprintf(error_.data(), kErrorBytes,
                    "threw a C++ exception; return PLUMB_FAILED instead");
    }
    error_[kErrorBytes] = 0;
  }
  void fail(const std::string& why) {
    code_ = PLUMB_FAILED;
    std::snprintf(error_.data(), kErrorBytes, "%s", why.c_str());
  }
  int code() const { return code_; }

  // Throws what a call that did not end well comes to.
  void settle(const std::string& where) const {
    if (code_ == PLUMB_OK) return;
    const std::string error = error_.data();
    if (code_ == PLUMB_UNSUPPORTED) {
      const char* usual = "does not support this case (PLUMB_UNSUPPORTED)";
      throw Unsupported(where + (error.empty() ? usual : error));
    }
    throw DeviceError(where +
                      (error.empty() ? text("returned ", code_, " without a message") : error));
  }

 private:
  Scratch scratch_;
  std::array<plumb_tensor, kMostOperands> operands_{};
  std::array<char, kErrorBytes + 1> error_{};
  plumb_call call_{};
  int code_ = PLUMB_FAILED;
};

std::string where_of(const PluginLibrary& plugin, OpId op) {
  return text('[', name_of(op), "] plugin ", plugin.file(), ": ");
}

// Whether sums may be farther off than those of `other`, of any length.
bool is_looser(const Accumulator& one, const Accumulator& other) {
  if (one.bits != other.bits) return one.bits < other.bits;
  if (one.rounding == SumRounding::nearest) return false;
  return other.rounding == SumRounding::nearest || one.block < other.block;
}

}  // namespace

PluginOps::PluginOps(Device& device, Ops* inner, PluginLibraries plugins)
    : Ops(device, all_names(inner, plugins)), inner_(inner), plugins_(std::move(plugins)) {
  if (inner_) inner_->observe(&inner_records_);
}

const PluginLibrary* PluginOps::plugin_for(OpId op) const {
  for (const auto& plugin : plugins_) {
    if (plugin->op(op)) return plugin.get();
  }
  return nullptr;
}

const PluginLibrary* PluginOps::plugin_that_runs(OpId op) const {
  const PluginLibrary* plugin = plugin_for(op);
  return plugin && choice().allows(op, {plugin->impl(), {}}) ? plugin : nullptr;
}

std::string PluginOps::looser_contract(OpId op, DType storage) const {
  const PluginLibrary* plugin = plugin_that_runs(op);
  if (!plugin) return {};
  const Contract own = inner_ ? inner_->contract(op, storage) : Contract{storage, storage, {}, {}};
  const Contract promised = plugin->contract(op, storage);
  if (!is_looser(promised.accumulator, own.accumulator) ||
      !is_looser(promised.accumulator, Accumulator{})) {
    return {};
  }
  return text(name_of(op), ": ", to_string(promised), inner_ ? ", the device's own " : ", usual ",
              to_string(own));
}

Contract PluginOps::contract(OpId op, DType storage) const {
  if (const PluginLibrary* plugin = plugin_that_runs(op)) return plugin->contract(op, storage);
  return inner_ ? inner_->contract(op, storage) : Contract{storage, storage, {}, {}};
}

bool PluginOps::overrides(OpId op) const {
  return is_fused(op) && (plugin_for(op) || (inner_ && inner_->overrides(op)));
}

void PluginOps::force(const std::string& regex) {
  Ops::force(regex);
  if (inner_) inner_->force(inner_->choice().finds(regex) ? regex : "");
}

void PluginOps::run(const PluginLibrary& plugin, const OpCall& op_call) {
  if (end_ && (device().host_owner() || device().checks_bounds())) {
    return run_confined(plugin, op_call);
  }
  const std::vector<Tensor> tensors = op_call.tensors();
  Arena::Scope scope(arena());
  PluginCall call(
      op_call, device().queue(),
      [&](size_t i) { return tensors[i].defined() ? tensors[i].raw() : nullptr; },
      [&](int64_t bytes) { return arena().take(DType::u8, {bytes}).raw(); });
  call.run(*plugin.op(op_call.op));
  call.settle(where_of(plugin, op_call.op));
}

// A kernel may need more alignment than its operands' elements have, and may say so: then the
// operands are moved from the end of their pages, by less than that.
void PluginOps::run_confined(const PluginLibrary& plugin, const OpCall& op_call) {
  constexpr int64_t kMostAlignment = 64;
  require_whole();
  const std::string where = where_of(plugin, op_call.op);
  const bool moves = end_ == PageEnd::right && device().host_owner();
  for (const int64_t alignment : {int64_t{0}, kMostAlignment}) {
    ConfinedCall apart(device(), op_call, *end_, alignment, pages_);
    PluginCall call(
        op_call, device().queue(), [&](size_t i) { return apart.data(i); },
        [&](int64_t bytes) { return apart.scratch(bytes); });
    const auto fault = run_watched(
        plugin.file(), [&](const void* p) { return apart.watches(p); },
        [&] { call.run(*plugin.op(op_call.op)); });
    if (fault && fault->in_other_thread) {
      broken_ = true;
      throw DeviceError(where + apart.words(*fault));
    }
    if (fault && fault->address) throw OutOfBounds(where + apart.words(*fault));
    if (fault) call.fail("misaligned, or wild, access at " + fault->line);
    if (call.code() == PLUMB_OK) return apart.give_back(where);
    if (!moves || alignment > 0) call.settle(where);
  }
}

void PluginOps::require_whole() const {
  require<DeviceError>(!broken_, "plugin", "a thread of it was stopped where it left its operands");
}

void PluginOps::do_call(const OpCall& call) {
  const PluginLibrary* plugin = plugin_for(call.op);
  if (plugin && choose(plugin->impl())) {
    for (const OpCall& one : call.singles()) run(*plugin, with_equal_shapes(one));
    return;
  }
  require<Unsupported>(inner_ != nullptr, std::string(name_of(call.op)).c_str(), "device ",
                       device().name(), " has no such op");
  inner_records_.clear();
  call.on(*inner_);
  if (!inner_records_.empty()) note(inner_records_.back());
}

}  // namespace plumb
