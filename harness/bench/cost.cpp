#include "harness/bench/cost.h"

#include <algorithm>

namespace plumb::harness {
namespace {

double bytes_of(const std::vector<Tensor>& tensors) {
  double sum = 0;
  for (const Tensor& t : tensors) sum += t.defined() ? static_cast<double>(t.bytes()) : 0;
  return sum;
}

// Of an element of the first output, or input.
double flops_per_element(const OpCall& call) {
  const OpRow& row = row_of(call.op);
  double often = 1;
  for (const char letter : row.per) often *= static_cast<double>(call.extent(letter));
  const double bias = row.of_bias > 0 && call.operand("bias").defined() ? row.of_bias : 0;
  return row.flops * often + row.more + bias;
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
  const bool looks_up =
      call.op == OpId::embedding || call.op == OpId::index_select || call.op == OpId::gather;
  if (looks_up) {
    return {2 * bytes_of(outputs) + static_cast<double>(call.operand("ids").bytes()), 0};
  }
  const OpRow& row = row_of(call.op);
  const Tensor& each = row.reduction || row.per_input ? inputs[0] : outputs[0];
  const auto elements = static_cast<double>(each.numel());
  return {bytes_of(outputs) + bytes_of(inputs), elements * flops_per_element(call)};
}

}  // namespace plumb::harness
