// Data movement that models use by itself, and running sums. Formulas and roundings: ops.h.
#include <cmath>

#include "kernels/oracle/oracle_ops.h"
#include "kernels/oracle/wider.h"

namespace plumb {

void OracleOps::do_transpose(const Tensor& out, const Tensor& x) {
  const std::vector<double> from = values_of(x);
  std::vector<double> values(from.size());
  const auto rows = static_cast<size_t>(x.dim(-2)), columns = static_cast<size_t>(x.dim(-1));
  for (size_t i = 0; i < from.size(); ++i) {
    const size_t matrix = i / (rows * columns), row = i / columns % rows, column = i % columns;
    values[(matrix * columns + column) * rows + row] = from[i];
  }
  move(out, values);
}

void OracleOps::do_mask_fill(const Tensor& out, const Tensor& x, const Tensor& mask, double value) {
  std::vector<double> values = values_of(x);
  const std::vector<double> fills = values_of(mask);
  for (size_t i = 0; i < values.size(); ++i) {
    if (fills[i] != 0) values[i] = value;
  }
  put(out, values, "mask_fill");
}

void OracleOps::do_cumsum(const Tensor& out, const Tensor& x, int64_t axis) {
  if (wider::has(x.dtype())) return wider::cumsum(out, x, static_cast<int>(axis));
  std::vector<double> values = values_of(x);
  const Noise noise(x.dtype());
  const size_t length = extent(x, static_cast<int>(axis));
  size_t inner = 1;
  for (int i = static_cast<int>(axis) + 1; i < x.rank(); ++i) inner *= extent(x, i);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i / inner % length != 0) continue;
    double sum = 0, magnitudes = 0;
    for (size_t terms = 0; terms < length; ++terms) {
      double& value = values[i + terms * inner];
      sum += value;
      magnitudes += std::fabs(value);
      value = noise.sum(sum, magnitudes, terms + 1);
    }
  }
  put(out, values, "cumsum");
}

void OracleOps::do_position_ids(const Tensor& out, const Tensor& valid, int64_t offset) {
  const auto tokens = static_cast<size_t>(out.dim(1));
  std::vector<double> values(static_cast<size_t>(out.numel()));
  const std::vector<double> real =
      valid.defined() ? values_of(valid) : std::vector<double>(values.size(), 1.0);
  for (size_t row = 0; row < values.size(); row += tokens) {
    auto next = static_cast<double>(offset);
    for (size_t t = row; t < row + tokens; ++t) values[t] = real[t] != 0 ? next++ : 0;
  }
  move(out, values);
}

}  // namespace plumb
