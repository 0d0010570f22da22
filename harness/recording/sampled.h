// Outputs too large to store: chosen rows of reference and delta, and a sketch of every row.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "harness/recording/layout.h"
#include "kernels/core/tensor.h"

namespace plumb::harness {

// The sketch of a row x is its products with 16 vectors of +1 and -1: sum_c sign(c, j) x_c, c the
// column and sign(c, j) = 1 - 2 (bit j of splitmix64(0, c)). The mean of the squared products is an
// unbiased estimate of |x|^2, with a relative standard deviation of sqrt(2 / 16).
inline constexpr int64_t kSketchWidth = 16;

// What the judge knows of all rows of an output whose arrays hold the chosen rows only. Sketches
// are [rows, 16], rows = (batch, token) as in Layout.
struct RowSample {
  std::vector<int64_t> tokens;  // the chosen ones, ascending
  int64_t of = 0;               // tokens of the whole output
  std::vector<double> y, reference, oracle;
  std::vector<double> rms;  // of the oracle, per row
  bool comparable = true;   // the oracle's sketch holds for this run's dtype
  int64_t not_finite = 0;   // elements of y in all rows
  int64_t first_bad_row = -1;
};

// "6 of 65 rows and a sketch of all"
std::string words_of(const RowSample& sample);

// Contiguous copy of the given indices of an axis of a host tensor.
Tensor take_rows(const Tensor& t, int axis, const std::vector<int64_t>& indices);

// The sketch of every row of a whole output, in double and column order.
std::vector<double> sketch_rows(const std::vector<double>& matrix, int64_t rows, int64_t columns);

}  // namespace plumb::harness
