// The rotary tables that the layers of one forward pass share.
#pragma once

#include <vector>

#include "blocks/rotary.h"
#include "kernels/core/device.h"

namespace plumb::blocks {

// cos and sin of the positions of a running sequence, or of several whose first tokens are padding.
//
// Two types of frequencies depend on how long the sequence is (HF: dynamic_rope_update), which is
// one more than the largest position: padding that all rows have does not count.
//   dynamic:  recomputed when the length exceeds all earlier ones and max_position; kept for a
//             shorter call, unless that is below max_position: then as at the start.
//   longrope: one set up to original_max_position, another beyond, chosen again for every call.
// Keys that are stored already stay as they were rotated.
class RotaryAngles {
 public:
  // `params`: of RotaryFrequencies, without a length; `dtype`: of cos and sin.
  // `padding`: per row, the tokens before position 0, which have that position, too; empty: none,
  // all rows being alike.
  RotaryAngles(Device& device, DType dtype, const Params& params, int64_t max_length,
               const std::vector<int64_t>& padding = {});

  // Throws what RotaryFrequencies::compute() has against them.
  static void check(const Params& params);

  int64_t rows() const { return positions_.dim(0); }  // 1 where all are alike

  // cos, sin [rows(), T, r] of the tokens past, past + 1, ..., past + T - 1. Uploads nothing unless
  // the frequencies change. `position`: where rows() and T are 1, without padding, i64 [1] with
  // `past` in the device's memory, which replayed launches read instead.
  void operator()(Context& ctx, const Tensor& cos, const Tensor& sin, int64_t past,
                  const Tensor& position = {});

  bool depend_on_length() const;

  // The frequencies of the calls from here on, r / 2 of them, as another program rounded them to
  // float32. BadInput at the next call unless they are its own but for the roundings of
  // theta^(-2i/r) in float32.
  void set_frequencies(std::vector<double> inv_freq);

 private:
  int64_t length_for(int64_t length);
  void compute(int64_t length);
  void require_roundings(const std::vector<double>& own) const;

  Device* device_;
  Params params_;
  Tensor positions_;           // i64 [rows, max_length]: 0, 1, 2, ...
  Tensor inv_freq_;            // [r / 2]
  int64_t least_skipped_ = 0;  // tokens of padding that every row has
  std::vector<double> given_;  // empty: one's own
  double scaling_ = 1;
  int64_t longest_ = 0;        // dynamic: the length that grew the base, at least max_position
  int64_t computed_for_ = -1;  // the length in the frequencies
};

}  // namespace plumb::blocks
