// Casts, and padding set to zero. Formulas and roundings: ops.h.
#include "kernels/oracle/oracle_ops.h"

namespace plumb {

void OracleOps::do_cast(const Tensor& out, const Tensor& x) { put(out, values_of(x), "cast"); }

void OracleOps::do_mask_rows(const Tensor& out, const Tensor& x, const Tensor& valid) {
  std::vector<double> values = values_of(x);
  const std::vector<double> keep = values_of(valid);
  const size_t width = extent(x, 2);
  for (size_t i = 0; i < values.size(); ++i) {
    if (keep[i / width] == 0) values[i] = 0;
  }
  move(out, values);
}

}  // namespace plumb
