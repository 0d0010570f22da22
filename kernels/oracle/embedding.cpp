// Rows of a table. Formulas and roundings: ops.h.
#include "kernels/error.h"
#include "kernels/oracle/oracle_ops.h"

namespace plumb {

void OracleOps::do_embedding(const Tensor& out, const Tensor& ids, const Tensor& weight,
                             double scale) {
  const int64_t vocab = weight.dim(0), channels = weight.dim(1);
  const std::vector<double> rows = values_of(weight);
  std::vector<double> values;
  for (double id : values_of(ids)) {
    require(id >= 0 && id < static_cast<double>(vocab), "embedding", "id ", id,
            " is outside a vocabulary of ", vocab);
    for (int64_t c = 0; c < channels; ++c) {
      values.push_back(rows[static_cast<size_t>(static_cast<int64_t>(id) * channels + c)] * scale);
    }
  }
  put(out, values, "embedding");
}

}  // namespace plumb
