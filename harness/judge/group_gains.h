// How much too large whole channels and heads are. Over the rows of a channel the errors of a right
// kernel cancel, what is a factor adds up: the gate gets tighter with the rows.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "harness/judge/limits.h"
#include "harness/judge/reference_scales.h"
#include "harness/recording/layout.h"

namespace plumb::harness {

// The errors d of an output, summed over the rows of every column.
struct ColumnErrors {
  std::vector<double> energy;  // sum d^2
  std::vector<double> along;   // sum d o
};

ColumnErrors column_errors(const std::vector<double>& values, const ReferenceScales& scales,
                           const std::vector<uint8_t>& skipped);
// Of every column the larger error and gain, or the smaller ones.
ColumnErrors larger(const ColumnErrors& a, const ColumnErrors& b);
ColumnErrors smaller(const ColumnErrors& a, const ColumnErrors& b);

// What gains need of o. `alike` and `level` are the share of a gain's noise that does not cancel,
// squared: of errors that are parts of their element, where elements that round to one number have
// one error, and of errors that are as large in all elements of a row.
class GainScales {
 public:
  struct Family {
    std::string name;          // "channel gain"
    Partition partition;       // of columns
    std::vector<double> size;  // sum o^2; 0: fewer than 8 distinct rows, or denormal numbers
    std::vector<double> alike, level;
    std::vector<double> rows;  // sum of the squared sizes of its rows / sum o^2, at least 1
    int64_t counted = 0;
  };

  explicit GainScales(const ReferenceScales& scales);
  // As they were measured elsewhere.
  GainScales(const ReferenceScales& scales, std::vector<Family> families);

  const std::vector<Family>& families() const { return families_; }

  // "channel gain" and "head gain", where the output has channels and heads of at least 8 distinct
  // rows:
  //   |g| <= max(z usual sqrt(noise), 1/4 v, c |g of the reference|, 2 u in float32),
  //   noise = a^2 alike + (v^2 - a^2) level,  a = min(v, 0.43 u); in float32 v^2 max of both
  //   v = max(the same group's sqrt(sum d^2 / sum o^2) of the reference, that of y without its
  //       gain, `error`, which before the output's rounding is a part of the whole row),
  //   z = c / 2 sqrt(2 ln(groups / 1e-9))
  //   usual = what y's other groups show: the median |g| / sqrt(noise) / 0.6745, at least 1
  // `error` is what the whole output may be off by.
  std::vector<Gate> gates(const ColumnErrors& y, const ColumnErrors& reference, double error) const;

 private:
  bool counts(int64_t distinct, double size) const;
  void add_channels();
  void add_heads(int axis);
  Gate gate(const Family& family, const ColumnErrors& y, const ColumnErrors& reference,
            double error) const;

  const ReferenceScales& scales_;
  std::vector<Family> families_;
};

}  // namespace plumb::harness
