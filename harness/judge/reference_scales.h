// What the statistics need of the oracle o: sizes that errors are measured in, per element and
// group.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "harness/judge/group_sums.h"
#include "harness/recording/layout.h"
#include "kernels/core/dtype.h"

namespace plumb::harness {

// A group family with what depends on o only. Groups of fewer than 8 elements are left out (scale
// 0).
struct FamilyScales {
  Partition partition;
  int64_t counted = 0;         // groups that are not left out
  bool uniform = true;         // those have one size
  std::vector<int64_t> sizes;  // n_g: usable elements
  // s_g = max(RMS_g(o), 2^-10 median over groups of RMS_g(o), smallest normal number)
  std::vector<double> scales;
  std::vector<double> kappas;  // small-sample widening of group g (1 where left out)
};

// What the statistics need of o, computed once for y, the reference and other models.
struct ReferenceScales {
  Layout layout;
  DType storage = DType::f32;   // of the outputs that are judged
  std::vector<double> o;        // [rows, columns]
  std::vector<uint8_t> usable;  // valid, and o finite
  int64_t n = 0;                // usable elements
  int64_t valid_rows = 0;       // rows with a usable element
  // max(m_row, 2^-10 median of m_row, smallest_normal), m_row = median_j |o_ij| / 0.6745
  std::vector<double> row_scale;
  std::vector<FamilyScales> families;
  std::vector<size_t> counted_families;  // indices of those with a group that counts
  std::shared_ptr<const RowPlan> plan;   // of those
  double smallest_normal = 0;  // of the storage: no size is less, below it steps are constant
  double sum_o2 = 0;
  double size_o2 = 0;  // at least that of n such numbers: what errors are measured in
  double max_abs = 0;
  bool constant = false;  // all usable elements are equal

  // s_i = max(|o_i|, row_scale), the size that an element's error is measured in.
  double element_scale(int64_t row, int64_t position) const {
    return std::max(std::fabs(o[static_cast<size_t>(position)]),
                    row_scale[static_cast<size_t>(row)]);
  }
};

ReferenceScales reference_scales(const Layout& layout, std::vector<double> o,
                                 const std::vector<uint8_t>& valid, DType storage);

}  // namespace plumb::harness
