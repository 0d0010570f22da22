// Which keys a query row may see, as additions to its scores.
#pragma once

#include <limits>

#include "kernels/cpu/rows.h"
#include "kernels/ops/ops.h"

namespace plumb::cpu {

class MaskRows {
 public:
  // An explicit mask is bool or of the storage dtype and broadcast over batch and heads here.
  MaskRows(const AttentionMask& mask, const Simd& simd, int64_t keys);

  struct Range {
    int64_t begin, end;  // empty when begin >= end
  };
  // Of a key that is not allowed.
  static constexpr float kExcluded = -std::numeric_limits<float>::infinity();

  // The keys that causality and window leave to query t; all of them under an explicit mask.
  Range range(int64_t t) const;
  // Whether that is all that the mask says.
  bool only_ranges() const { return !mask_.explicit_mask.defined() && !mask_.key_valid.defined(); }

  // Adds the mask to scores[s - begin] for keys s in [begin, end): minus infinity where s is not
  // allowed. An explicit additive mask does not allow a key where it is -inf or the dtype's lowest
  // finite number.
  void apply(float* scores, int64_t b, int64_t h, int64_t t, int64_t begin, int64_t end) const;

  bool any_allowed(int64_t b, int64_t h, int64_t t) const;

 private:
  const char* explicit_row(int64_t b, int64_t h, int64_t t) const;

  const AttentionMask& mask_;
  const int64_t keys_;
  Format format_;  // of an explicit additive mask
  float lowest_ = 0;
  int64_t batch_stride_ = 0, head_stride_ = 0;  // of the explicit mask; 0 where it is broadcast
};

}  // namespace plumb::cpu
