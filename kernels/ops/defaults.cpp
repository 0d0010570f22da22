// Default compositions of the fused ops: HF's eager code, one rounding after every operation.
#include "kernels/core/error.h"
#include "kernels/ops/ops.h"

namespace plumb {

void Ops::compose_gated_activation(const Tensor& out, const Tensor& gate, const Tensor& up,
                                   Activation function) {
  Arena::Scope scope(arena_);
  const Tensor activated = arena_.take(gate.dtype(), gate.shape());
  activation(activated, gate, function);
  mul(out, activated, up);
}

void Ops::compose_softcap(const Tensor& out, const Tensor& x, double cap) {
  scale(out, x, cap, ScaleOperation::divide);
  activation(out, out, Activation::tanh);
  scale(out, out, cap);
}

void Ops::compose_scaled_add(const Tensor& out, const Tensor& x, const Tensor& residual,
                             double factor) {
  Arena::Scope scope(arena_);
  const Tensor scaled = arena_.take(x.dtype(), x.shape());
  scale(scaled, x, factor);
  add(out, scaled, residual);
}

void Ops::compose_add_rms_norm(const Tensor& sum, const Tensor& out, const Tensor& x,
                               const Tensor& residual, const Tensor& weight,
                               const RmsNormParams& params) {
  add(sum, x, residual);
  rms_norm(out, sum, weight, params);
}

void Ops::compose_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                       const AttentionMask& mask, const SdpaParams& params) {
  const int64_t batch = q.dim(0), heads = q.dim(1), queries = q.dim(2), keys = k.dim(2);
  Arena::Scope scope(arena_);
  const Tensor scores = arena_.take(q.dtype(), {batch, heads, queries, keys});
  matmul(scores, q, k, true);
  scale(scores, scores, params.scale);
  if (params.softcap) {
    // The parts, not softcap(): its fused version may round differently from HF's eager code.
    compose_softcap(scores, scores, *params.softcap);
  }
  Tensor additive = mask.explicit_mask;
  if (!additive.defined() || additive.dtype() == DType::boolean) {
    const Shape shape = additive.defined()
                            ? additive.shape()
                            : Shape{mask.key_valid.defined() ? batch : 1, 1, queries, keys};
    additive = arena_.take(q.dtype(), shape);
    causal_mask(additive, mask);
  }
  masked_add(scores, scores, additive);
  softmax(scores, scores);
  matmul(out.transpose(1, 2), scores, v, false);
}

}  // namespace plumb
