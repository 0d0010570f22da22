// Tape: what ran on a device's ops, call by call, so that it can be gone through backwards. Each op
// has one rule (kernels/gradients/rules.h); what is made of ops, a block or a whole model, has its
// gradients by it.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "kernels/ops/ops.h"

namespace plumb {

// One call that ran: its views of memory, and the values that the op's rule will read. Values are
// undefined where it reads none.
struct TapedCall {
  OpCall call;
  std::vector<Tensor> values;  // as call.tensors()
};

// Gradients live in shadows: for each storage that tensors of a call view, bytes of the same
// layout, so that the gradient of a view is the same view of the shadow. Memory that a call writes
// has the gradient of what is in it now: zero again once the call is behind us. So a block may
// write in place, or use scratch memory again.
//
// What a tensor that is used twice gets is added up in its own dtype, rounded after each addition,
// in the reverse order of the uses, as torch does.
class Tape final : public Ops {
 public:
  // Runs everything on `inner`, in whose scratch memory values and gradients are until the tape
  // ends. Scopes of that memory that are opened later have to end earlier.
  explicit Tape(Ops& inner);

  // An operand of everything that runs from now on: nothing may write it.
  void hold(const Tensor& leaf);
  // Adds `cotangent`, of t's shape and dtype, to the gradient of t.
  void seed(const Tensor& t, const Tensor& cotangent);
  // Goes through all calls, the last one first. Throws Unsupported where an op has no rule.
  void run_backward();
  // The first of the calls that took it, counted from 0, behind which its gradient is whole; -1:
  // none did.
  int64_t first_use(const Tensor& leaf) const;
  // The gradient of t, whose memory nothing has written, in `out`: zero where none came to it.
  void read_gradient(const Tensor& out, const Tensor& t);

  Contract contract(OpId op, DType storage) const override { return inner_.contract(op, storage); }
  // A fused op without a rule of its own is taped as its parts.
  bool overrides(OpId op) const override;
  bool takes_narrow_weights() const override { return inner_.takes_narrow_weights(); }

 private:
  friend class GradientStep;

  void do_call(const OpCall& call) override;
  void tape(const OpCall& call);
  // A copy of t, unless nothing can change it.
  Tensor kept(const Tensor& t);
  Tensor take(DType dtype, const Shape& shape) { return inner_.arena().take(dtype, shape); }
  bool is_held(const Tensor& t) const;
  // The same view of the gradients of t's storage; undefined where there are none yet, unless they
  // are to be `made`.
  Tensor shadow(const Tensor& t, bool made);
  // Adds d, of t's shape, to the gradient of t.
  void add(const Tensor& t, const Tensor& d);

  struct Shadow {
    Tensor of;     // keeps its storage, so that no other one gets its address
    Tensor bytes;  // undefined while no gradient has come
  };

  Ops& inner_;
  Arena::Scope scratch_;
  std::vector<TapedCall> calls_;
  std::map<const Storage*, Tensor> held_;
  std::map<const Storage*, int64_t> first_uses_;  // of what is held
  std::map<const Storage*, Shadow> shadows_;
};

}  // namespace plumb
