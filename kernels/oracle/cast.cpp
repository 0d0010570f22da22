// Casts, and padding set to zero. Formulas and roundings: ops.h.
#include "kernels/ops/casts.h"
#include "kernels/oracle/oracle_ops.h"

namespace plumb {

void OracleOps::do_cast(const Tensor& out, const Tensor& x) {
  const bool has_whole = !is_floating(x.dtype()) || !is_floating(out.dtype());
  if (!has_whole && (x.dtype() != DType::f64 || info(out.dtype()).significand_bits >= 24)) {
    return put(out, values_of(x), "cast");
  }
  std::vector<double> values = values_of(x);
  for (double& value : values) {
    Number number{!is_floating(x.dtype()), 0, value};
    if (number.whole) number.i = static_cast<int64_t>(value);
    value = !is_floating(out.dtype())   ? static_cast<double>(casts::whole(out.dtype(), number))
            : out.dtype() == DType::f64 ? value
                                        : casts::narrow(number);
  }
  put(out, values, "cast");
}

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
