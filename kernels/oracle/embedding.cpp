// Rows of a table. Formulas and roundings: ops.h.
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

}  // namespace plumb
