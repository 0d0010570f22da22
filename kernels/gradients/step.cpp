#include "kernels/gradients/step.h"

#include <stdexcept>

#include "kernels/core/error.h"

namespace plumb {

size_t GradientStep::place(std::string_view name) const {
  const Signature& row = row_of(taped_.call.op).operands;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (row.operands.at(i).name == name) return i;
  }
  throw std::logic_error("no operand has that name");
}

void GradientStep::take_gradients() {
  const std::vector<Tensor> outputs = taped_.call.outputs();
  for (const Tensor& out : outputs) {
    const bool carries = out.defined() && is_floating(out.dtype());
    const Tensor g = carries ? tape_.shadow(out, false) : Tensor();
    gradients_.push_back(g.defined() ? like(g) : g);
    if (!g.defined()) continue;
    ops().copy(gradients_.back(), g);
    ops().fill(g, 0);
  }
}

bool GradientStep::has_gradient(std::string_view output) const {
  return gradients_.at(place(output)).defined();
}

Tensor GradientStep::gradient(std::string_view output) const {
  if (has_gradient(output)) return gradients_[place(output)];
  const Tensor zero = like(operand(output));
  ops().fill(zero, 0);
  return zero;
}

void GradientStep::give(std::string_view input, const Tensor& d) const {
  const Tensor& t = operand(input);
  if (!t.defined()) return;
  tape_.add(t.shape() == d.shape() ? t : t.broadcast(d.shape()), d);
}

Tensor GradientStep::dense(const Tensor& t) const {
  if (!t.defined() || t.contiguous()) return t;
  const Tensor copy = like(t);
  ops().copy(copy, t);
  return copy;
}

Tensor GradientStep::widened(const Tensor& t) const {
  if (size_of(t.dtype()) >= size_of(DType::f32)) return t;
  const Tensor wide = take(DType::f32, t.shape());
  ops().cast(wide, t);
  return wide;
}

void GradientStep::give_rounded(std::string_view input, const Tensor& d) const {
  if (d.dtype() == operand(input).dtype()) return give(input, d);
  give_made(input, [&](const Tensor& rounded) { ops().cast(rounded, d); });
}

}  // namespace plumb
