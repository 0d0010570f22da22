#include "kernels/plugin_ops.h"

#include <algorithm>
#include <cstdio>

#include "kernels/error.h"

namespace plumb {
namespace {

constexpr int64_t kErrorBytes = 512;

// What is passed as a number is the same number on both sides of the border.
static_assert(static_cast<int>(Activation::gelu_tanh) == PLUMB_GELU_TANH &&
              static_cast<int>(Activation::tanh) == PLUMB_TANH);
static_assert(static_cast<int>(FullyMasked::zero) == PLUMB_ZERO &&
              static_cast<int>(FullyMasked::excluded) == PLUMB_EXCLUDED);
static_assert(kMaxRank == PLUMB_MAX_RANK);

int32_t code_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return PLUMB_F64;
    case DType::f32: return PLUMB_F32;
    case DType::f16: return PLUMB_F16;
    case DType::bf16: return PLUMB_BF16;
    case DType::i64: return PLUMB_I64;
    case DType::i32: return PLUMB_I32;
    case DType::boolean: return PLUMB_BOOL;
    case DType::u8: return PLUMB_U8;
    default: throw Unsupported(text("[plugin] ", name_of(dtype), " has no code in plugin.h"));
  }
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

plumb_params norm_params(const RmsNormParams& p) {
  plumb_params out{};
  out.eps = p.eps;
  out.weight_offset = p.weight_offset;
  out.weight_after_rounding = p.rounding == WeightRounding::before;
  return out;
}

plumb_params mask_params(const AttentionMask& mask) {
  plumb_params out{};
  out.causal = mask.causal;
  out.window = mask.window.value_or(0);
  out.query_offset = mask.query_offset;
  out.key_offset = mask.key_offset;
  out.fully_masked = static_cast<int32_t>(mask.fully_masked);
  return out;
}

plumb_params activation_params(Activation function) {
  plumb_params out{};
  out.activation = static_cast<int32_t>(function);
  return out;
}

// What plumb_call::scratch finds behind its context.
struct Scratch {
  Arena& arena;
  std::vector<Tensor> taken;
};

void* take_scratch(const plumb_call* call, int64_t bytes) noexcept {
  try {
    auto& scratch = *static_cast<Scratch*>(call->context);
    if (bytes < 0) return nullptr;
    scratch.taken.push_back(scratch.arena.take(DType::u8, {std::max<int64_t>(bytes, 1)}));
    return scratch.taken.back().raw();
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

void PluginOps::call(const PluginLibrary& plugin, OpId op, const plumb_params& params,
                     Tensors tensors) {
  std::array<plumb_tensor, 8> operands{};
  std::transform(tensors.begin(), tensors.end(), operands.begin(), c_tensor);
  Arena::Scope scope(arena());
  Scratch scratch{arena(), {}};
  char error[kErrorBytes + 1] = {};
  plumb_call call{};
  call.tensors = operands.data();
  call.count = static_cast<int32_t>(tensors.size());
  call.params = params;
  call.stream = device().queue();
  call.scratch = take_scratch;
  call.context = &scratch;
  call.error = error;
  call.error_bytes = kErrorBytes;
  int code = PLUMB_FAILED;
  try {
    code = plugin.op(op)->run(&call);
  } catch (...) {
    std::snprintf(error, kErrorBytes, "threw a C++ exception; return PLUMB_FAILED instead");
  }
  if (code == PLUMB_OK) return;
  error[kErrorBytes] = 0;
  const std::string where = text('[', name_of(op), "] plugin ", plugin.file(), ": ");
  if (code == PLUMB_UNSUPPORTED) {
    throw Unsupported(where + (*error ? error : "does not support this case (PLUMB_UNSUPPORTED)"));
  }
  throw DeviceError(where + (*error ? error : text("returned ", code, " without a message")));
}

template <class Own>
void PluginOps::run(OpId op, const plumb_params& params, Tensors tensors, Own own) {
  const PluginLibrary* plugin = plugin_for(op);
  if (plugin && choose(plugin->impl())) return call(*plugin, op, params, tensors);
  forward(op, own);
}

template <class Own>
void PluginOps::forward(OpId op, Own own) {
  require<Unsupported>(inner_ != nullptr, std::string(name_of(op)).c_str(), "device ",
                       device().name(), " has no such op");
  inner_records_.clear();
  own(*inner_);
  if (!inner_records_.empty()) note(inner_records_.back());
}

void PluginOps::do_embedding(const Tensor& out, const Tensor& ids, const Tensor& weight,
                             double scale) {
  plumb_params p{};
  p.scale = scale;
  run(OpId::embedding, p, {out, ids, weight},
      [&](Ops& own) { own.embedding(out, ids, weight, scale); });
}

void PluginOps::do_rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                            const RmsNormParams& params) {
  run(OpId::rms_norm, norm_params(params), {out, x, weight},
      [&](Ops& own) { own.rms_norm(out, x, weight, params); });
}

void PluginOps::do_layer_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                              const Tensor& bias, double eps) {
  plumb_params p{};
  p.eps = eps;
  run(OpId::layer_norm, p, {out, x, weight, bias},
      [&](Ops& own) { own.layer_norm(out, x, weight, bias, eps); });
}

void PluginOps::do_linear(const Tensor& out, const Tensor& x, const Tensor& weight,
                          const Tensor& bias) {
  run(OpId::linear, {}, {out, x, weight, bias},
      [&](Ops& own) { own.linear(out, x, weight, bias); });
}

void PluginOps::do_activation(const Tensor& out, const Tensor& x, Activation function) {
  run(OpId::activation, activation_params(function), {out, x},
      [&](Ops& own) { own.activation(out, x, function); });
}

void PluginOps::do_add(const Tensor& out, const Tensor& a, const Tensor& b) {
  run(OpId::add, {}, {out, a, b}, [&](Ops& own) { own.add(out, a, b); });
}

void PluginOps::do_mul(const Tensor& out, const Tensor& a, const Tensor& b) {
  run(OpId::mul, {}, {out, a, b}, [&](Ops& own) { own.mul(out, a, b); });
}

void PluginOps::do_scale(const Tensor& out, const Tensor& x, double factor,
                         ScaleOperation operation) {
  plumb_params p{};
  p.scale = factor;
  p.divide = operation == ScaleOperation::divide;
  run(OpId::scale, p, {out, x}, [&](Ops& own) { own.scale(out, x, factor, operation); });
}

void PluginOps::do_softmax(const Tensor& out, const Tensor& x) {
  run(OpId::softmax, {}, {out, x}, [&](Ops& own) { own.softmax(out, x); });
}

void PluginOps::do_matmul(const Tensor& out, const Tensor& a, const Tensor& b, bool transpose_b) {
  plumb_params p{};
  p.transpose_b = transpose_b;
  run(OpId::matmul, p, {out, a, b}, [&](Ops& own) { own.matmul(out, a, b, transpose_b); });
}

void PluginOps::do_masked_add(const Tensor& out, const Tensor& x, const Tensor& mask) {
  run(OpId::masked_add, {}, {out, x, mask}, [&](Ops& own) { own.masked_add(out, x, mask); });
}

void PluginOps::do_repeat_heads(const Tensor& out, const Tensor& x) {
  run(OpId::repeat_heads, {}, {out, x}, [&](Ops& own) { own.repeat_heads(out, x); });
}

void PluginOps::do_rotary_table(const Tensor& cos, const Tensor& sin, const Tensor& positions,
                                const Tensor& inv_freq, double attention_scaling) {
  plumb_params p{};
  p.attention_scaling = attention_scaling;
  run(OpId::rotary_table, p, {cos, sin, positions, inv_freq},
      [&](Ops& own) { own.rotary_table(cos, sin, positions, inv_freq, attention_scaling); });
}

void PluginOps::do_rotary(const Tensor& out, const Tensor& x, const Tensor& cos, const Tensor& sin,
                          RotaryStyle style) {
  plumb_params p{};
  p.interleaved = style == RotaryStyle::interleaved;
  run(OpId::rotary, p, {out, x, cos, sin}, [&](Ops& own) { own.rotary(out, x, cos, sin, style); });
}

void PluginOps::do_causal_mask(const Tensor& out, const AttentionMask& mask) {
  run(OpId::causal_mask, mask_params(mask), {out, mask.key_valid, mask.explicit_mask},
      [&](Ops& own) { own.causal_mask(out, mask); });
}

void PluginOps::do_copy(const Tensor& out, const Tensor& x) {
  run(OpId::copy, {}, {out, x}, [&](Ops& own) { own.copy(out, x); });
}

void PluginOps::do_cast(const Tensor& out, const Tensor& x) {
  run(OpId::cast, {}, {out, x}, [&](Ops& own) { own.cast(out, x); });
}

void PluginOps::do_mask_rows(const Tensor& out, const Tensor& x, const Tensor& valid) {
  run(OpId::mask_rows, {}, {out, x, valid}, [&](Ops& own) { own.mask_rows(out, x, valid); });
}

void PluginOps::do_div(const Tensor& out, const Tensor& a, const Tensor& b) {
  run(OpId::div, {}, {out, a, b}, [&](Ops& own) { own.div(out, a, b); });
}

void PluginOps::do_add_scalar(const Tensor& out, const Tensor& x, double value) {
  forward(OpId::add_scalar, [&](Ops& own) { own.add_scalar(out, x, value); });
}

void PluginOps::do_transpose(const Tensor& out, const Tensor& x) {
  run(OpId::transpose, {}, {out, x}, [&](Ops& own) { own.transpose(out, x); });
}

void PluginOps::do_mask_fill(const Tensor& out, const Tensor& x, const Tensor& mask, double value) {
  forward(OpId::mask_fill, [&](Ops& own) { own.mask_fill(out, x, mask, value); });
}

void PluginOps::do_position_ids(const Tensor& out, const Tensor& valid, int64_t offset) {
  forward(OpId::position_ids, [&](Ops& own) { own.position_ids(out, valid, offset); });
}

void PluginOps::do_causal_conv1d(const Tensor& out, const Tensor& state_after, const Tensor& x,
                                 const Tensor& weight, const Tensor& bias,
                                 const Tensor& state_before, std::optional<Activation> function) {
  forward(OpId::causal_conv1d, [&](Ops& own) {
    own.causal_conv1d(out, state_after, x, weight, bias, state_before, function);
  });
}

void PluginOps::do_ssd_scan(const Tensor& y, const Tensor& state_after, const SsdInputs& in,
                            const SsdParams& params) {
  forward(OpId::ssd_scan, [&](Ops& own) { own.ssd_scan(y, state_after, in, params); });
}

void PluginOps::do_gated_rms_norm(const Tensor& out, const Tensor& x, const Tensor& gate,
                                  const Tensor& weight, const GatedRmsNormParams& params) {
  forward(OpId::gated_rms_norm,
          [&](Ops& own) { own.gated_rms_norm(out, x, gate, weight, params); });
}

void PluginOps::do_gated_activation(const Tensor& out, const Tensor& gate, const Tensor& up,
                                    Activation function) {
  run(OpId::gated_activation, activation_params(function), {out, gate, up},
      [&](Ops& own) { own.gated_activation(out, gate, up, function); });
}

void PluginOps::do_softcap(const Tensor& out, const Tensor& x, double cap) {
  plumb_params p{};
  p.cap = cap;
  run(OpId::softcap, p, {out, x}, [&](Ops& own) { own.softcap(out, x, cap); });
}

void PluginOps::do_add_rms_norm(const Tensor& sum, const Tensor& out, const Tensor& x,
                                const Tensor& residual, const Tensor& weight,
                                const RmsNormParams& params) {
  run(OpId::add_rms_norm, norm_params(params), {sum, out, x, residual, weight},
      [&](Ops& own) { own.add_rms_norm(sum, out, x, residual, weight, params); });
}

void PluginOps::do_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                        const AttentionMask& mask, const SdpaParams& params) {
  plumb_params p = mask_params(mask);
  p.scale = params.scale;
  p.cap = params.softcap.value_or(0);
  run(OpId::sdpa, p, {out, q, k, v, mask.key_valid, mask.explicit_mask},
      [&](Ops& own) { own.sdpa(out, q, k, v, mask, params); });
}

}  // namespace plumb
