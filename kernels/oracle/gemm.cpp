// Matrix products. Formulas and roundings: ops.h.
#include <cmath>

#include "kernels/oracle/oracle_ops.h"

namespace plumb {

void OracleOps::do_linear(const Tensor& out, const Tensor& x, const Tensor& weight,
                          const Tensor& bias) {
  const std::vector<double> a = values_of(x), w = values_of(weight);
  const std::vector<double> b = bias.defined() ? values_of(bias) : std::vector<double>();
  const size_t inner = static_cast<size_t>(weight.dim(1));
  const size_t columns = static_cast<size_t>(weight.dim(0));
  const size_t rows = static_cast<size_t>(out.numel()) / (columns ? columns : 1);
  std::vector<double> values(rows * columns);
  // Some programs round the product before they add the bias.
  const bool apart = bias.defined() && rounds_here(x.dtype(), "linear.product", false);
  const Noise noise(x.dtype());
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; ++j) {
      double sum = 0;
      for (size_t k = 0; k < inner; ++k) sum += a[i * inner + k] * w[j * inner + k];
      if (noise.on()) {
        double magnitudes = 0;
        for (size_t k = 0; k < inner; ++k) {
          magnitudes += std::fabs(a[i * inner + k] * w[j * inner + k]);
        }
        sum = noise.sum(sum, magnitudes, inner);
      }
      if (apart) sum = round_to(x.dtype(), sum);
      values[i * columns + j] = bias.defined() ? sum + b[j] : sum;
    }
  }
  put(out, values, "linear");
}

void OracleOps::do_matmul(const Tensor& out, const Tensor& a, const Tensor& b, bool transpose_b) {
  const size_t rows = static_cast<size_t>(a.dim(2)), inner = static_cast<size_t>(a.dim(3));
  const size_t columns = static_cast<size_t>(out.dim(3));
  const int64_t group = a.dim(1) / b.dim(1);
  const Rounding rounding(out.dtype(), "matmul");
  const Noise noise(a.dtype());
  const size_t row_step = transpose_b ? 1 : columns, column_step = transpose_b ? inner : 1;
  for (int64_t n = 0; n < a.dim(0); ++n) {
    for (int64_t h = 0; h < a.dim(1); ++h) {
      const auto at = [&](const Tensor& t, int64_t head) {
        return t.slice(0, n, n + 1).slice(1, head, head + 1);
      };
      const std::vector<double> left = values_of(at(a, h)), right = values_of(at(b, h / group));
      std::vector<double> product(rows * columns);
      for (size_t i = 0; i < rows; ++i) {
        for (size_t j = 0; j < columns; ++j) {
          double sum = 0, magnitudes = 0;
          for (size_t k = 0; k < inner; ++k) {
            const double term = left[i * inner + k] * right[k * row_step + j * column_step];
            sum += term;
            magnitudes += std::fabs(term);
          }
          product[i * columns + j] = rounding(noise.sum(sum, magnitudes, inner));
        }
      }
      move(at(out, h), product);
    }
  }
}

}  // namespace plumb
