// What attention and its backward require of their masks and parameters.
#pragma once

#include "kernels/ops/op_checks.h"

namespace plumb {

// scores: [B, H, T, S].
inline void require_attention(const char* op, const Device& device, const AttentionMask& mask,
                              const SdpaParams& params, const Shape& scores, DType storage) {
  const int64_t batch = scores[0], heads = scores[1], queries = scores[2], keys = scores[3];
  require(keys > 0, op, "no keys: the scores have shape ", scores);
  require(!params.softcap || *params.softcap > 0, op, "softcap is ", params.softcap.value_or(0),
          ", must be positive");
  require_mask(op, device, mask, batch, keys);
  if (!mask.explicit_mask.defined()) return;
  const Tensor& m = mask.explicit_mask;
  require_placed(op, device, {{"mask", m}});
  require_rank(op, "mask", m, 4);
  require(m.dtype() == DType::boolean || m.dtype() == storage, op, "mask is ", name_of(m.dtype()),
          ", expected bool or ", name_of(storage));
  require_broadcast(op, "mask", 0, m.dim(0), batch);
  require_broadcast(op, "mask", 1, m.dim(1), heads);
  require(m.dim(2) == queries && m.dim(3) == keys, op, "mask has shape ", m.shape(),
          ", expected [.., .., ", queries, ", ", keys, ']');
  require(!mask.causal && !mask.window && !mask.key_valid.defined(), op,
          "an explicit mask replaces causal, window and key_valid, which must be off");
}

}  // namespace plumb
