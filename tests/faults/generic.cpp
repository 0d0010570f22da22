#include "tests/faults/generic.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/core/error.h"
#include "kernels/ops/samples.h"
#include "tests/faults/edits.h"

namespace plumb::harness::testing {
namespace {

// One argument of some type, changed.
struct ArgumentEdit {
  std::string name;
  size_t type;  // of OpArgument
  std::function<void(OpArgument&, const OpCall&)> change;
};

template <class T>
ArgumentEdit of(const char* name, const std::function<void(T&, const OpCall&)>& change) {
  return {name, OpArgument(T()).index(), [change](OpArgument& argument, const OpCall& call) {
            change(std::get<T>(argument), call);
          }};
}
// One of its members.
template <class T, class Member>
ArgumentEdit of(const char* name, Member T::*member, void (*change)(Member&)) {
  return of<T>(name, [=](T& value, const OpCall&) { change(value.*member); });
}

using MaybeNumber = std::optional<double>;
using MaybeWindow = std::optional<int64_t>;

void larger(double& x) { x *= 1.01; }
void lost(double& x) { x = 0; }
void one(double& x) { x = 1; }
void exchanged(double& x) { x = 1 - x; }
void larger_cap(MaybeNumber& x) {
  if (x) *x *= 1.01;
}
void left_out(MaybeNumber& x) { x.reset(); }
void no_window(MaybeWindow& x) { x.reset(); }
void larger_window(MaybeWindow& x) {
  if (x) ++*x;
}
void one_more(int64_t& x) { ++x; }
void one_alone(int64_t& x) { x = 1; }
void one_or_none(double& x) { x = x != 0 ? 1 : 0; }
void no_function(std::optional<Activation>& x) { x.reset(); }
void negated(bool& x) { x = !x; }
template <class T>
void other(T& one_of_two) {
  one_of_two = static_cast<T>(1 - static_cast<int>(one_of_two));
}

// Where results have the same shape: of another, a call is refused.
void next_axes(Axes& axes, const OpCall& call) {
  if (call.op == OpId::flip) return axes.set ^= 1, void();
  const Shape shape = call.operand("x").shape();
  Axes next;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const int before = axis == 0 ? shape.rank() - 1 : axis - 1;
    if (axes.has(before)) next.set |= 1u << axis;
  }
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const bool same = axes.has(axis) == next.has(axis) || shape[axis] == 1;
    if (!same && call.outputs()[0].rank() == shape.rank()) return;
  }
  std::vector<int64_t> of_axes, of_next;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (!axes.has(axis)) of_axes.push_back(shape[axis]);
    if (!next.has(axis)) of_next.push_back(shape[axis]);
  }
  if (of_axes == of_next) axes = next;
}

std::vector<ArgumentEdit> argument_edits() {
  using Mask = AttentionMask;
  return {
      of<double>("number 1 % larger", [](auto& x, auto&) { larger(x); }),
      of<double>("number 1", [](auto& x, auto&) { one(x); }),
      of<Activation>(
          "next function",
          [](auto& f, auto&) { f = static_cast<Activation>((static_cast<int>(f) + 1) % 4); }),
      of<std::optional<Activation>>(
          "function left out, or put in",
          [](auto& f, auto&) { f = f ? std::nullopt : std::optional(Activation::silu); }),
      of<ScaleOperation>("other operation", [](auto& x, auto&) { other(x); }),
      of<RotaryStyle>("other style", [](auto& x, auto&) { other(x); }),
      of<int64_t>("next axis or offset",
                  [](auto& x, auto& call) {
                    ++x;
                    if (row_of(call.op).along_axis) x %= call.outputs()[0].rank();
                  }),
      of<PerAxis>("first number of axes one more, or exchanged",
                  [](auto& numbers, auto& call) {
                    if (call.op == OpId::permute) std::swap(numbers[0], numbers[1]);
                    else ++numbers[0];
                  }),
      of("seed one more", &RandomStream::seed, one_more),
      of("offset one more", &RandomStream::offset, one_more),
      of<bool>("other end", [](auto& x, auto& call) { x = x != (call.op == OpId::top_k); }),
      of<Axes>("next axes", next_axes),
      of("eps 1 % larger", &RmsNormParams::eps, larger),
      of("eps missing", &RmsNormParams::eps, lost),
      of("1 + w for w and the reverse", &RmsNormParams::weight_offset, exchanged),
      of("weight and cast exchanged", &RmsNormParams::rounding, other<WeightRounding>),
      of("eps missing", &GatedRmsNormParams::eps, lost),
      of("alpha 1 % larger", &GemmParams::alpha, larger),
      of("c as it is", &GemmParams::beta, one_or_none),
      of("function left out", &GemmParams::function, no_function),
      of<QuantisedParams>("other version of GPTQ",
                          [](auto& p, auto&) {
                            const bool first = p.layout == QuantLayout::gptq;
                            if (first) p.layout = QuantLayout::gptq_v2;
                            else if (p.layout == QuantLayout::gptq_v2) p.layout = QuantLayout::gptq;
                          }),
      of("divisor 1 % larger", &QuantizeParams::divisor, larger),
      of("eps missing", &GroupNormParams::eps, lost),
      of("one group", &GroupNormParams::groups, one_alone),
      of("padding counts, or not", &PoolParams::counts_padding, negated),
      of<GatedRmsNormParams>("one group",
                             [](auto& p, auto& call) { p.group_size = call.operand("x").dim(-1); }),
      of("causal and not exchanged", &Mask::causal, negated),
      of("window left out", &Mask::window, no_window),
      of("window one larger", &Mask::window, larger_window),
      of("query offset one more", &Mask::query_offset, one_more),
      of("key offset one more", &Mask::key_offset, one_more),
      of("rows without keys otherwise", &Mask::fully_masked, other<FullyMasked>),
      of("scale 1 % larger", &SdpaParams::scale, larger),
      of("scale 1", &SdpaParams::scale, one),
      of("softcap 1 % larger", &SdpaParams::softcap, larger_cap),
      of("softcap left out", &SdpaParams::softcap, left_out),
      of("ignored label one more", &LogitLossParams::ignored, one_more),
      of("scale 1 % larger", &LogitLossParams::scale, larger),
      of("softcap 1 % larger", &LogitLossParams::softcap, larger_cap),
      of("softcap left out", &LogitLossParams::softcap, left_out),
      of("dt not clamped from below", &SsdParams::dt_min, left_out),
      of("dt not clamped from above", &SsdParams::dt_max, left_out),
  };
}

// Wrong in every tensor: of a result, or as an operand is read.
std::vector<NamedEdit> tensor_edits() {
  std::vector<NamedEdit> out = edits_of_moved();
  const std::vector<NamedEdit> more = {
      {"first row for all",
       [](Values& v, const Tensor& t) {
         const auto width = static_cast<size_t>(t.dim(-1));
         for (size_t i = width; i < v.size(); ++i) v[i] = v[i - width];
       }},
      {"rows and columns exchanged",
       [](Values& v, const Tensor& t) {
         const auto width = static_cast<size_t>(t.dim(-1)), rows = width ? v.size() / width : 0;
         const Values old = v;
         for (size_t i = 0; i < v.size(); ++i) v[i] = old[i % rows * width + i / rows];
       }},
      {"one for all", [](Values& v, const Tensor&) { std::fill(v.begin(), v.end(), 1); }},
      {"one more, or not",
       [](Values& v, const Tensor& t) {
         const double most = v.empty() ? 0 : *std::max_element(v.begin(), v.end());
         if (t.dtype() == DType::boolean)
           for (double& x : v) x = 1 - x;
         if (t.dtype() == DType::i64)
           for (double& x : v) x = std::min(x + 1, most);
       }},
  };
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

// Whether the edit is one of tensors of this dtype.
bool is_of(DType dtype, const std::string& edit) {
  if (edit == "one more, or not") return !is_floating(dtype);
  const bool of_floats = edit == "in bf16" || edit == "1 % too large" || edit == "negated";
  return !of_floats || is_floating(dtype);
}

// Only of ops that move or choose elements: others may round otherwise.
bool is_of_bits(const std::string& edit) { return edit == "last element off by one unit"; }

class Planter {
 public:
  explicit Planter(OpId op) : row_(row_of(op)) {}

  std::vector<GenericFault> plant() {
    for (int at = 0; at < row_.operands.count; ++at) {
      const auto i = static_cast<size_t>(at);
      at < row_.operands.outputs ? output_faults(i) : input_faults(i);
    }
    swapped_inputs();
    argument_faults();
    truncated_outputs();
    return std::move(out_);
  }

 private:
  std::string operand(size_t at) const { return std::string(row_.operands.operands.at(at).name); }

  void add(const std::string& name, const std::function<void(Call&, const OpCall&)>& run) {
    out_.push_back({name, {.op = row_.id, .whole = run}});
  }

  void output_faults(size_t at) {
    for (const auto& [name, change] : tensor_edits()) {
      if (is_of_bits(name) && row_.bits != OpBits::exact) continue;
      add(operand(at) + ": " + name,
          [at, change = change, name = name](Call& c, const OpCall& call) {
            call.on(c.ops);
            const Tensor t = call.tensors()[at];
            if (!t.defined() || t.numel() == 0 || !is_of(t.dtype(), name)) return;
            edit(t, [&](Values& v) { change(v, t); });
          });
    }
    add(operand(at) + ": last element not written", [at](Call& c, const OpCall& call) {
      const Tensor t = call.tensors()[at];
      const bool any = t.defined() && t.numel() > 0;
      const double before = any ? values_of(t).back() : 0;
      call.on(c.ops);
      if (any) edit(t, [&](Values& v) { v.back() = before; });
    });
    add(operand(at) + ": one NaN", [at](Call& c, const OpCall& call) {
      call.on(c.ops);
      const Tensor t = call.tensors()[at];
      if (t.defined() && t.numel() > 0 && is_floating(t.dtype())) {
        edit(t, [&](Values& v) { v[v.size() / 2] = std::nan(""); });
      }
    });
  }

  void input_faults(size_t at) {
    for (const auto& [name, change] : tensor_edits()) {
      if (is_of_bits(name)) continue;
      add(operand(at) + ": " + name,
          [at, change = change, name = name](Call& c, const OpCall& call) {
            std::vector<Tensor> t = call.tensors();
            if (!t[at].defined() || t[at].numel() == 0 || !is_of(t[at].dtype(), name)) {
              return call.on(c.ops);
            }
            t[at] = changed(c.ops, t[at], [&](Values& v) { change(v, t[at]); });
            call.with(t).on(c.ops);
          });
    }
    if (!row_.operands.operands.at(at).optional) return;
    add(operand(at) + ": left out", [at](Call& c, const OpCall& call) {
      std::vector<Tensor> t = call.tensors();
      t[at] = {};
      call.with(t).on(c.ops);
    });
  }

  void swapped_inputs() {
    for (size_t b = 0; b < static_cast<size_t>(row_.operands.count); ++b) {
      for (size_t a = static_cast<size_t>(row_.operands.outputs); a < b; ++a) {
        add(operand(a) + " and " + operand(b) + " swapped", [a, b](Call& c, const OpCall& call) {
          std::vector<Tensor> t = call.tensors();
          const bool alike = t[a].defined() && t[b].defined() && t[a].shape() == t[b].shape() &&
                             t[a].dtype() == t[b].dtype();
          if (alike) std::swap(t[a], t[b]);
          call.with(t).on(c.ops);
        });
      }
    }
  }

  void argument_faults() {
    const auto first = [n = 0](auto&) mutable { return n++ == 0; };
    const OpCall sample = samples_of(row_.id, DType::f32, first).front().call;
    for (size_t at = 0; at < sample.arguments.size(); ++at) {
      for (const ArgumentEdit& it : argument_edits()) {
        if (it.type != sample.arguments[at].index()) continue;
        add(it.name, [at, change = it.change](Call& c, const OpCall& call) {
          OpCall wrong = call;
          change(wrong.arguments[at], call);
          wrong.on(c.ops);
        });
      }
    }
  }

  // What float64 gives, rounded toward zero.
  void truncated_outputs() {
    if (row_.bits == OpBits::exact && row_.id != OpId::cast) return;
    add("truncating store", [](Call& c, const OpCall& call) {
      call.on(c.ops);
      const auto oracle = open_device("oracle", 1);
      std::vector<Tensor> wide;
      for (const Tensor& t : call.tensors()) {
        if (!t.defined()) {
          wide.emplace_back();
          continue;
        }
        wide.push_back(
            oracle->allocate(is_floating(t.dtype()) ? DType::f64 : t.dtype(), t.shape()));
        put(wide.back(), values_of(t));
      }
      call.with(wide).on(oracle->ops());
      const std::vector<Tensor> outputs = call.outputs();
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (outputs[i].defined()) put_truncated(outputs[i], values_of(wide[i]));
      }
    });
  }

  const OpRow& row_;
  std::vector<GenericFault> out_;
};

}  // namespace

std::vector<GenericFault> generic_faults(OpId op) { return Planter(op).plant(); }

}  // namespace plumb::harness::testing
