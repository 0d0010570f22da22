// The errors of an output, some neighbouring elements of a row at a time: what is computed of them
// finds them in the fastest cache.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "harness/judge/group_sums.h"
#include "harness/judge/reference_scales.h"
#include "kernels/core/shared_loop.h"

namespace plumb::harness {

inline constexpr size_t kSegment = 512;  // elements

// run(row, column, n) for the segments of one part of the rows, in order, and end_row(row).
template <class Run, class EndRow>
void for_segments(const RowPlan& plan, size_t part, const Run& run, const EndRow& end_row) {
  for (size_t row = plan.parts[part]; row < plan.parts[part + 1]; ++row) {
    for (size_t column = 0; column < plan.columns; column += kSegment) {
      run(row, column, std::min(kSegment, plan.columns - column));
    }
    end_row(row);
  }
}

// What make(part) gives for the parts of the rows, in their order.
template <class Make>
auto of_row_parts(const RowPlan& plan, const Make& make) {
  std::vector<decltype(make(size_t{}))> out(plan.parts.size() - 1);
  const LoopParts loop(out.size(), 1, plan.rows * plan.columns);
  for_parts(loop, [&](size_t begin, size_t end, size_t) {
    for (size_t part = begin; part < end; ++part) out[part] = make(part);
  });
  return out;
}

// Errors of a part of a row, with the oracle's values.
struct ErrorSegment {
  size_t begin = 0, n = 0;   // positions [begin, begin + n)
  bool all = true;           // every element counts
  uint8_t counts[kSegment];  // usable, and not skipped
  // y - o and o; 0 where an element does not count.
  alignas(64) double d[kSegment];
  alignas(64) double o[kSegment];

  void load(const std::vector<double>& y, const ReferenceScales& scales,
            const std::vector<uint8_t>& skipped, size_t first, size_t length) {
    begin = first;
    n = length;
    size_t counted = 0;
    for (size_t i = 0; i < n; ++i) {
      counts[i] = static_cast<uint8_t>(scales.usable[begin + i] & (skipped[begin + i] ^ 1));
    }
    for (size_t i = 0; i < n; ++i) counted += counts[i];
    all = counted == n;
    const double *values = y.data() + begin, *oracle = scales.o.data() + begin;
    if (all) {
      for (size_t i = 0; i < n; ++i) {
        d[i] = values[i] - oracle[i];
        o[i] = oracle[i];
      }
      return;
    }
    for (size_t i = 0; i < n; ++i) {
      d[i] = counts[i] ? values[i] - oracle[i] : 0.0;
      o[i] = counts[i] ? oracle[i] : 0.0;
    }
  }
};

}  // namespace plumb::harness
