#include "kernels/plugin/call_params.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernels/ops/table.h"

namespace plumb {
namespace {

// What is passed as a number is the same number on both sides of the border.
static_assert(static_cast<int>(Activation::gelu_tanh) == PLUMB_GELU_TANH &&
              static_cast<int>(Activation::tanh) == PLUMB_TANH);
static_assert(static_cast<int>(FullyMasked::zero) == PLUMB_ZERO &&
              static_cast<int>(FullyMasked::excluded) == PLUMB_EXCLUDED);
static_assert(static_cast<int>(QuantLayout::awq) == PLUMB_AWQ &&
              static_cast<int>(QuantLayout::q6_k) == PLUMB_Q6_K && kLayouts == PLUMB_Q6_K + 1);
static_assert(static_cast<int>(ScaleRule::shared_exponent) == PLUMB_SHARED_EXPONENT);

double* number_of(OpId op, plumb_params& params) {
  switch (row_of(op).number) {
    case NumberField::eps: return &params.eps;
    case NumberField::attention_scaling: return &params.attention_scaling;
    case NumberField::cap: return &params.cap;
    case NumberField::scale: break;
  }
  return &params.scale;
}

// Writes each argument of a call that is no tensor to its fields.
struct ParamsOf {
  OpId op;
  plumb_params out{};
  plumb_more_params more{};

  int numbers = 0;  // so far

  void operator()(double value) { (numbers++ == 0 ? *number_of(op, out) : more.shift) = value; }
  void operator()(bool value) { (op == OpId::top_k ? more.largest : out.transpose_b) = value; }
  void operator()(int64_t value) {
    (row_of(op).along_axis      ? more.axis
     : op == OpId::position_ids ? more.offset
                                : more.index) = value;
  }
  void operator()(const PerAxis& numbers) {
    std::copy(numbers.at.begin(), numbers.at.end(), std::begin(more.per_axis));
  }
  void operator()(const RandomStream& random) {
    more.seed = random.seed;
    more.offset = random.offset;
  }
  void operator()(Axes axes) { more.axes = axes.set; }
  void operator()(Activation function) { out.activation = static_cast<int32_t>(function); }
  void operator()(std::optional<Activation> function) {
    more.has_activation = function.has_value();
    if (function) (*this)(*function);
  }
  void operator()(ScaleOperation way) { out.divide = way == ScaleOperation::divide; }
  void operator()(RotaryStyle style) { out.interleaved = style == RotaryStyle::interleaved; }
  void operator()(const RmsNormParams& p) {
    out.eps = p.eps;
    out.weight_offset = p.weight_offset;
    out.weight_after_rounding = p.rounding == WeightRounding::before;
  }
  void operator()(const AttentionMask& mask) {
    out.causal = mask.causal;
    out.window = mask.window.value_or(0);
    out.query_offset = mask.query_offset;
    out.key_offset = mask.key_offset;
    out.fully_masked = static_cast<int32_t>(mask.fully_masked);
  }
  void operator()(const SdpaParams& p) {
    out.scale = p.scale;
    out.cap = p.softcap.value_or(0);
  }
  void operator()(const LogitLossParams& p) {
    out.scale = p.scale;
    out.cap = p.softcap.value_or(0);
    more.index = p.ignored;
  }
  void operator()(const GatedRmsNormParams& p) {
    out.eps = p.eps;
    more.group_size = p.group_size;
  }
  void operator()(const GemmParams& p) {
    out.scale = p.alpha;
    out.transpose_b = p.transpose_b;
    more.beta = p.beta;
    more.transpose_a = p.transpose_a;
    (*this)(p.function);
  }
  void operator()(const GroupNormParams& p) {
    out.eps = p.eps;
    more.groups = p.groups;
  }
  void operator()(const QuantisedParams& p) {
    more.layout = static_cast<int32_t>(p.layout);
    std::copy(p.group.begin(), p.group.end(), std::begin(more.group));
  }
  void operator()(const QuantizeParams& p) {
    more.scale_rule = static_cast<int32_t>(p.rule);
    more.divisor = p.divisor;
    std::copy(p.group.begin(), p.group.end(), std::begin(more.group));
  }
  void operator()(const ConvParams& p) {
    more.groups = p.groups;
    for (size_t axis = 0; axis < 2; ++axis) {
      more.stride[axis] = p.stride[axis];
      more.padding[axis] = p.padding[axis];
      more.dilation[axis] = p.dilation[axis];
      more.output_padding[axis] = p.output_padding[axis];
    }
  }
  void operator()(const PoolParams& p) {
    more.counts_padding = p.counts_padding;
    for (size_t axis = 0; axis < 2; ++axis) {
      more.kernel[axis] = p.kernel[axis];
      more.stride[axis] = p.stride[axis];
      more.padding[axis] = p.padding[axis];
    }
  }
  void operator()(const SsdParams& p) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    more.step = p.form == SsdForm::step;
    more.chunk_size = p.chunk_size;
    more.dt_min = p.dt_min.value_or(-kInfinity);
    more.dt_max = p.dt_max.value_or(kInfinity);
  }
  void operator()(const Tensor&) {}
  void operator()(const SsdInputs&) {}
};

template <class T>
void add(std::vector<NamedParam>& out, std::string_view name, std::span<const T> values) {
  if (std::ranges::all_of(values, [](T value) { return value == 0; })) return;
  NamedParam& param = out.emplace_back(NamedParam{name, {}, {}});
  if constexpr (std::is_floating_point_v<T>) {
    param.numbers.assign(values.begin(), values.end());
  } else {
    param.integers.assign(values.begin(), values.end());
  }
}
template <class T>
void add(std::vector<NamedParam>& out, std::string_view name, const T& value) {
  if constexpr (std::is_array_v<T>) {
    add(out, name, std::span<const std::remove_extent_t<T>>(value));
  } else {
    add(out, name, std::span<const T>(&value, 1));
  }
}

}  // namespace

CallParams params_of(const OpCall& call) {
  ParamsOf params{call.op};
  for (const OpArgument& argument : call.arguments) std::visit(params, argument);
  return {params.out, params.more};
}

std::vector<NamedParam> named(const CallParams& params) {
  std::vector<NamedParam> out;
  add(out, "eps", params.first.eps);
  add(out, "weight_offset", params.first.weight_offset);
  add(out, "scale", params.first.scale);
  add(out, "cap", params.first.cap);
  add(out, "attention_scaling", params.first.attention_scaling);
  add(out, "window", params.first.window);
  add(out, "query_offset", params.first.query_offset);
  add(out, "key_offset", params.first.key_offset);
  add(out, "weight_after_rounding", params.first.weight_after_rounding);
  add(out, "divide", params.first.divide);
  add(out, "activation", params.first.activation);
  add(out, "transpose_b", params.first.transpose_b);
  add(out, "interleaved", params.first.interleaved);
  add(out, "causal", params.first.causal);
  add(out, "fully_masked", params.first.fully_masked);
  add(out, "shift", params.more.shift);
  add(out, "axes", params.more.axes);
  add(out, "axis", params.more.axis);
  add(out, "offset", params.more.offset);
  add(out, "group_size", params.more.group_size);
  add(out, "chunk_size", params.more.chunk_size);
  add(out, "dt_min", params.more.dt_min);
  add(out, "dt_max", params.more.dt_max);
  add(out, "step", params.more.step);
  add(out, "has_activation", params.more.has_activation);
  add(out, "groups", params.more.groups);
  add(out, "kernel", params.more.kernel);
  add(out, "stride", params.more.stride);
  add(out, "padding", params.more.padding);
  add(out, "dilation", params.more.dilation);
  add(out, "output_padding", params.more.output_padding);
  add(out, "beta", params.more.beta);
  add(out, "transpose_a", params.more.transpose_a);
  add(out, "counts_padding", params.more.counts_padding);
  add(out, "per_axis", params.more.per_axis);
  add(out, "seed", params.more.seed);
  add(out, "largest", params.more.largest);
  add(out, "index", params.more.index);
  add(out, "layout", params.more.layout);
  add(out, "group", params.more.group);
  add(out, "divisor", params.more.divisor);
  add(out, "scale_rule", params.more.scale_rule);
  return out;
}

}  // namespace plumb
