// GradientStep: what the rule of an op is given, one call of it on the way back.
#pragma once

#include <string_view>

#include "kernels/gradients/tape.h"

namespace plumb {

class GradientStep {
 public:
  GradientStep(Tape& tape, const TapedCall& taped) : tape_(tape), taped_(taped) {}

  // The device's ops.
  Ops& ops() const { return tape_.inner_; }
  const OpCall& call() const { return taped_.call; }
  template <class T>
  const T& get() const {
    return taped_.call.get<T>();
  }

  // Whether there is such an operand in this call.
  bool has(std::string_view name) const { return operand(name).defined(); }
  // Where it is, or was: its shape, dtype and place, no values.
  const Tensor& operand(std::string_view name) const { return tensors_.at(place(name)); }
  // Its values as the call had them, dense; the op's row of rules must say that it reads them.
  Tensor value(std::string_view name) const { return dense(taped_.values.at(place(name))); }

  // The gradient of an output, dense, of an operand's dtype; zero where none came.
  Tensor gradient(std::string_view output = "out") const;
  // Whether any gradient can have come to it.
  bool has_gradient(std::string_view output) const;

  // Adds d to the gradient of an input. Where the input was repeated along axes of d, aligned from
  // the right, d is summed along them first, and rounded once.
  void give(std::string_view input, const Tensor& d) const;
  // What `make` writes, in dense memory of the input's shape and dtype.
  template <class Make>
  void give_made(std::string_view input, Make make) const {
    if (!has(input)) return;
    const Tensor d = like(operand(input));
    make(d);
    give(input, d);
  }

  // Scratch memory, until the step ends.
  Tensor take(DType dtype, const Shape& shape) const { return tape_.take(dtype, shape); }
  Tensor like(const Tensor& t) const { return take(t.dtype(), t.shape()); }
  // t, or a copy of it that has no gaps.
  Tensor dense(const Tensor& t) const;
  // t in float32, or t where it is as wide.
  Tensor widened(const Tensor& t) const;
  // Adds d, which may be wider than an input, to its gradient.
  void give_rounded(std::string_view input, const Tensor& d) const;

 private:
  friend class Tape;
  size_t place(std::string_view name) const;
  // Takes what came to the outputs, whose memory has no gradient from now on.
  void take_gradients();

  Tape& tape_;
  const TapedCall& taped_;
  std::vector<Tensor> tensors_ = taped_.call.tensors();
  std::vector<Tensor> gradients_;  // of the outputs, in order; undefined: none came
};

}  // namespace plumb
