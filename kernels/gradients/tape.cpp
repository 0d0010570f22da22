#include "kernels/gradients/tape.h"

#include <algorithm>

#include "kernels/core/error.h"
#include "kernels/gradients/rules.h"
#include "kernels/gradients/step.h"

namespace plumb {

namespace {

bool is_float(const Tensor& t) { return t.defined() && is_floating(t.dtype()); }

// Null: the op has none. Nothing comes through what is made of no float.
const GradientRule* rule_of(const OpCall& call) {
  static constexpr GradientRule kNothing;
  const std::vector<Tensor> inputs = call.inputs();
  return std::none_of(inputs.begin(), inputs.end(), is_float) ? &kNothing : gradient_rule(call.op);
}

}  // namespace

Tape::Tape(Ops& inner) : Ops(inner.device()), inner_(inner), scratch_(inner.arena()) {
  set_fused(inner.fused());
  arena().set_poison(inner.arena().poison());
}

bool Tape::overrides(OpId op) const { return is_fused(op) && gradient_rule(op) != nullptr; }

void Tape::hold(const Tensor& leaf) {
  if (leaf.defined()) held_.emplace(&leaf.storage(), leaf);
}

bool Tape::is_held(const Tensor& t) const { return held_.contains(&t.storage()); }

Tensor Tape::kept(const Tensor& t) {
  if (!t.defined() || is_held(t)) return t;
  const Tensor copy = take(t.dtype(), t.shape());
  inner_.copy(copy, t);
  return copy;
}

void Tape::do_call(const OpCall& call) {
  for (const OpCall& single : call.singles()) tape(single);
}

void Tape::tape(const OpCall& call) {
  const OpRow& row = row_of(call.op);
  const GradientRule* rule = rule_of(call);
  if (!rule) throw Unsupported(text("[backward] op \"", row.name, "\" has no gradients here"));
  const std::vector<Tensor> tensors = call.tensors();
  TapedCall taped{call, std::vector<Tensor>(tensors.size())};
  const auto keep = [&](bool outputs) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (call.writes(i) != outputs || !tensors[i].defined()) continue;
      require(!outputs || !is_held(tensors[i]), row.name,
              "writes an operand of what gradients are asked of");
      if (rule->reads_value(row.operands.operands.at(i).name)) taped.values[i] = kept(tensors[i]);
    }
  };
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].defined() && !call.writes(i) && is_held(tensors[i])) {
      first_uses_.emplace(&tensors[i].storage(), std::ssize(calls_));
    }
  }
  keep(false);
  call.on(inner_);
  keep(true);
  calls_.push_back(std::move(taped));
}

Tensor Tape::shadow(const Tensor& t, bool made) {
  const Storage* storage = &t.storage();
  Shadow& shadow = shadows_[storage];
  if (!shadow.bytes.defined()) {
    if (!made) return {};
    shadow.of = t;
    shadow.bytes = device().allocate(DType::u8, {storage->bytes});
    device().fill(shadow.bytes, 0);
  }
  return t.in(shadow.bytes);
}

void Tape::add(const Tensor& t, const Tensor& d) {
  Tensor to = shadow(t, true), sum = d;
  Axes repeated;
  for (int axis = 0; axis < to.rank(); ++axis) {
    if (to.stride(axis) != 0 || to.dim(axis) <= 1) continue;
    repeated.set |= 1u << axis;
    to = to.slice(axis, 0, 1);
  }
  if (repeated.set != 0) {
    sum = take(d.dtype(), to.shape());
    inner_.reduce(OpId::sum, sum, d, repeated);
  }
  inner_.add(to, to, sum);
}

void Tape::seed(const Tensor& t, const Tensor& cotangent) { add(t, cotangent); }

void Tape::run_backward() {
  for (auto taped = calls_.rbegin(); taped != calls_.rend(); ++taped) {
    Arena::Scope scope(inner_.arena());
    GradientStep step(*this, *taped);
    step.take_gradients();
    const auto came = [](const Tensor& g) { return g.defined(); };
    const bool any = std::any_of(step.gradients_.begin(), step.gradients_.end(), came);
    const GradientRule* rule = rule_of(taped->call);
    if (any && rule->run) rule->run(step);
  }
  calls_.clear();
}

int64_t Tape::first_use(const Tensor& leaf) const {
  const auto found = first_uses_.find(&leaf.storage());
  return found == first_uses_.end() ? -1 : found->second;
}

void Tape::read_gradient(const Tensor& out, const Tensor& t) {
  const Tensor g = shadow(t, false);
  if (g.defined()) inner_.copy(out, g);
  else inner_.fill(out, 0);
}

}  // namespace plumb
