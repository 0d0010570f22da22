// Pools and upsampling. Formulas and roundings: ops.h.
#include <cmath>

#include "kernels/oracle/oracle_ops.h"

namespace plumb {

void OracleOps::do_pool(const PoolCall& call) {
  const Tensor &out = call.out, &x = call.x;
  const std::vector<double> from = values_of(x);
  const PoolParams& p = call.params;
  const Noise noise(x.dtype());
  std::vector<double> values(static_cast<size_t>(out.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const int64_t column = at % out.dim(3), row = at / out.dim(3) % out.dim(2);
    const int64_t plane = at / out.dim(3) / out.dim(2);
    double sum = 0, magnitudes = 0, largest = -std::numeric_limits<double>::infinity();
    int64_t elements = 0;
    for (int64_t tap = 0; tap < p.kernel[0] * p.kernel[1]; ++tap) {
      const int64_t h = row * p.stride[0] - p.padding[0] + tap / p.kernel[1];
      const int64_t w = column * p.stride[1] - p.padding[1] + tap % p.kernel[1];
      if (h < 0 || h >= x.dim(2) || w < 0 || w >= x.dim(3)) continue;
      const double value = from[static_cast<size_t>((plane * x.dim(2) + h) * x.dim(3) + w)];
      sum += value;
      magnitudes += std::fabs(value);
      if (value > largest || std::isnan(value)) largest = value;
      ++elements;
    }
    values[i] = call.is_mean() ? noise.sum(sum, magnitudes, static_cast<size_t>(elements)) /
                                     static_cast<double>(divisor_of_mean(p, elements))
                               : largest;
  }
  call.is_mean() ? put(out, values, call.row.name) : move(out, values);
}

void OracleOps::do_upsample_nearest2d(const Tensor& out, const Tensor& x) {
  const std::vector<double> from = values_of(x);
  const float down = nearest_scale(x.dim(2), out.dim(2)),
              across = nearest_scale(x.dim(3), out.dim(3));
  std::vector<double> values(static_cast<size_t>(out.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const int64_t row = nearest_source(at / out.dim(3) % out.dim(2), down, x.dim(2));
    const int64_t column = nearest_source(at % out.dim(3), across, x.dim(3));
    const int64_t plane = at / out.dim(3) / out.dim(2);
    values[i] = from[static_cast<size_t>((plane * x.dim(2) + row) * x.dim(3) + column)];
  }
  move(out, values);
}

}  // namespace plumb
