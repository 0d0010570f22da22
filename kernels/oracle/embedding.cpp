// Rows of a table. Formulas and roundings: ops.h.
#include <cmath>

#include "kernels/oracle/oracle_ops.h"

namespace plumb {

void OracleOps::do_embedding(const Tensor& out, const Tensor& ids, const Tensor& weight,
                             double scale) {
  require_ids(OpId::embedding, ids, weight.dim(0));
  std::vector<double> values;
  for (double id : values_of(ids)) {
    const auto row = static_cast<int64_t>(id);
    for (const double value : values_of(weight.slice(0, row, row + 1))) {
      values.push_back(value * scale);
    }
  }
  put(out, values, "embedding");
}

void OracleOps::do_embedding_backward(const Tensor& d_weight, const Tensor& d_out,
                                      const Tensor& ids, double scale, int64_t padding) {
  require_ids(OpId::embedding_backward, ids, d_weight.dim(0));
  const size_t channels = extent(d_weight, 1);
  const std::vector<double> gradients = values_of(d_out), rows = values_of(ids);
  std::vector<double> values(extent(d_weight, 0) * channels, 0.0), magnitudes = values;
  std::vector<size_t> terms(extent(d_weight, 0), 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (static_cast<int64_t>(rows[i]) == padding) continue;
    const auto row = static_cast<size_t>(rows[i]);
    ++terms[row];
    for (size_t c = 0; c < channels; ++c) {
      values[row * channels + c] += gradients[i * channels + c];
      magnitudes[row * channels + c] += std::fabs(gradients[i * channels + c]);
    }
  }
  const Noise noise(d_weight.dtype());
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t count = terms[i / channels];
    if (count > 1) values[i] = noise.sum(values[i], magnitudes[i], count);
    values[i] *= scale;
  }
  put(d_weight, values, "embedding_backward");
}

}  // namespace plumb
