#include "harness/referee/keyless_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "harness/execution/converted.h"
#include "harness/recording/layout.h"

namespace plumb::harness {
namespace {

// By row of the last axis: no score is left, and y is right.
std::vector<uint8_t> rows_aside(const Tensor& scores, const Tensor& y) {
  const Tensor wide = converted(scores, DType::f64), results = converted(y, DType::f64);
  const int64_t length = scores.dim(-1);
  std::vector<uint8_t> out(static_cast<size_t>(length > 0 ? scores.numel() / length : 0));
  for (size_t row = 0; row < out.size(); ++row) {
    const int64_t begin = static_cast<int64_t>(row) * length;
    const double *x = wide.data<double>() + begin, *p = results.data<double>() + begin;
    constexpr double lowest = -std::numeric_limits<double>::infinity();
    out[row] = std::all_of(x, x + length, [](double score) { return score == lowest; }) &&
               (std::all_of(p, p + length, [](double v) { return v == 0; }) ||
                std::all_of(p, p + length, [](double v) { return std::isnan(v); }));
  }
  return out;
}

// Zeros in these rows: NaN is not finite, which what is set aside has to be.
Tensor with_zeros(const Tensor& y, const std::vector<uint8_t>& rows) {
  const Tensor out = host_tensor(y.dtype(), y.shape());
  const int64_t bytes = y.dim(-1) * size_of(y.dtype());
  for (size_t row = 0; row < rows.size(); ++row) {
    const int64_t begin = static_cast<int64_t>(row) * bytes;
    char* to = out.data<char>() + begin;
    if (rows[row]) std::memset(to, 0, static_cast<size_t>(bytes));
    else std::memcpy(to, y.data<char>() + begin, static_cast<size_t>(bytes));
  }
  return out;
}

}  // namespace

void set_keyless_rows_aside(Evidence& output, const Tensor& scores) {
  if (!output.has_expected_shape() || !(scores.shape() == output.y.shape())) return;
  const std::vector<uint8_t> aside = rows_aside(scores, output.y);
  if (std::find(aside.begin(), aside.end(), 1) == aside.end()) return;
  const Layout layout = layout_of(output.y.shape(), output.axes);
  const std::vector<uint8_t> valid = to_mask(output.valid, output.valid_axes, layout);
  const std::vector<int64_t> flat = flat_positions(layout);
  const auto length = static_cast<size_t>(scores.dim(-1));
  const Tensor judged = host_tensor(DType::boolean, output.y.shape());
  for (size_t i = 0; i < flat.size(); ++i) {
    const auto at = static_cast<size_t>(flat[i]);
    judged.data<uint8_t>()[at] = valid[i] && !aside[at / length];
  }
  output.valid = judged;
  output.valid_axes = output.axes;
  output.y = with_zeros(output.y, aside);
}

}  // namespace plumb::harness
