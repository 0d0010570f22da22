#include "harness/bench/cost.h"

#include <algorithm>

namespace plumb::harness {
namespace {

double bytes_of(const std::vector<Tensor>& tensors) {
  double sum = 0;
  for (const Tensor& t : tensors) sum += t.defined() ? static_cast<double>(t.bytes()) : 0;
  return sum;
}

// Operations per element of the first output.
double flops_per_element(OpId op, const std::vector<Tensor>& inputs) {
  switch (op) {
    case OpId::linear: {
      const bool bias = inputs[2].defined();
      return 2 * static_cast<double>(inputs[0].dim(-1)) + (bias ? 1 : 0);
    }
    case OpId::matmul: return 2 * static_cast<double>(inputs[0].dim(-1));
    case OpId::rms_norm: return 4;          // square, sum, times the norm, times the weight
    case OpId::add_rms_norm: return 5;      // the residual too
    case OpId::layer_norm: return 7;        // sum, minus mean, square, sum, norm, weight, bias
    case OpId::softmax: return 5;           // maximum, minus it, exp, sum, quotient
    case OpId::activation: return 4;        // silu's negation, exp, sum, quotient stand for all
    case OpId::gated_activation: return 5;  // and the product
    case OpId::softcap: return 3;
    case OpId::causal_conv1d: return 2 * static_cast<double>(inputs[1].dim(-1)) + 4;  // and silu
    case OpId::ssd_scan: return 5 * static_cast<double>(inputs[2].dim(-1));  // decay, input, output
    case OpId::gated_rms_norm: return 9;  // silu, its product, and the norm
    case OpId::rotary: return 3;
    case OpId::rotary_table: return 3;
    case OpId::add:
    case OpId::mul:
    case OpId::div:
    case OpId::add_scalar:
    case OpId::scale:
    case OpId::masked_add: return 1;
    default: return 0;
  }
}

Cost cost_of_sdpa(const OpCall& call) {
  const std::vector<Tensor> t = call.tensors();
  const Tensor &out = t[0], &q = t[1], &k = t[2], &v = t[3];
  const auto& mask = call.get<AttentionMask>();
  const int64_t queries = q.dim(2), keys = k.dim(2);
  double pairs = 0;
  KeyRange seen{keys, 0};
  for (int64_t t = 0; t < queries; ++t) {
    const KeyRange range = visible_keys(mask, t, keys);
    pairs += static_cast<double>(range.end - range.begin);
    seen.begin = std::min(seen.begin, range.begin);
    seen.end = std::max(seen.end, range.end);
  }
  const double share =
      static_cast<double>(std::max<int64_t>(seen.end - seen.begin, 0)) / static_cast<double>(keys);
  const auto width = static_cast<double>(q.dim(3) + v.dim(3));
  return {bytes_of({out, q, mask.key_valid, mask.explicit_mask}) + share * bytes_of({k, v}),
          2 * width * pairs * static_cast<double>(q.dim(0) * q.dim(1))};
}

}  // namespace

KeyRange visible_keys(const AttentionMask& mask, int64_t query, int64_t keys) {
  const int64_t at = mask.query_offset + query - mask.key_offset;
  KeyRange out{0, keys};
  if (mask.causal) out.end = std::clamp<int64_t>(at + 1, 0, keys);
  if (mask.window) out.begin = std::clamp<int64_t>(at - *mask.window + 1, 0, out.end);
  return out;
}

Cost cost_of(const OpCall& call) {
  if (call.op == OpId::sdpa) return cost_of_sdpa(call);
  const std::vector<Tensor> outputs = call.outputs(), inputs = call.inputs();
  if (call.op == OpId::embedding) {
    return {2 * bytes_of(outputs) + static_cast<double>(inputs[0].bytes()), 0};
  }
  const auto elements = static_cast<double>(outputs[0].numel());
  return {bytes_of(outputs) + bytes_of(inputs), elements * flops_per_element(call.op, inputs)};
}

}  // namespace plumb::harness
