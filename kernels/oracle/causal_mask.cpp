// Masks as tensors. Formulas and roundings: ops.h.
#include <cmath>

#include "kernels/oracle/oracle_ops.h"

namespace plumb {

std::vector<double> additive_mask(const AttentionMask& mask, int64_t b, int64_t h, int64_t queries,
                                  int64_t keys) {
  std::vector<double> out;
  if (mask.explicit_mask.defined()) {
    const Tensor& m = mask.explicit_mask;
    const int64_t row = m.dim(0) == 1 ? 0 : b, head = m.dim(1) == 1 ? 0 : h;
    out = values_of(m.slice(0, row, row + 1).slice(1, head, head + 1));
    const bool boolean = m.dtype() == DType::boolean;
    for (double& value : out) {
      if (boolean) value = value != 0 ? 0 : kLowest;
      else if (value == -info(m.dtype()).max || std::isinf(value)) value = kLowest;
    }
    return out;
  }
  const std::vector<double> valid = mask.key_valid.defined()
                                        ? values_of(mask.key_valid.slice(0, b, b + 1))
                                        : std::vector<double>();
  for (int64_t t = 0; t < queries; ++t) {
    for (int64_t s = 0; s < keys; ++s) {
      const int64_t query = mask.query_offset + t, key = mask.key_offset + s;
      const bool allowed = (!mask.causal || key <= query) &&
                           (!mask.window || query - key < *mask.window) &&
                           (valid.empty() || valid[static_cast<size_t>(s)] != 0);
      out.push_back(allowed ? 0 : kLowest);
    }
  }
  return out;
}

void OracleOps::do_causal_mask(const Tensor& out, const AttentionMask& mask) {
  const double masked = mask.fully_masked == FullyMasked::zero
                            ? -std::numeric_limits<double>::infinity()
                            : -(is_floating(out.dtype()) ? info(out.dtype()).max : 0);
  for (int64_t b = 0; b < out.dim(0); ++b) {
    for (int64_t h = 0; h < out.dim(1); ++h) {
      std::vector<double> values = additive_mask(mask, b, h, out.dim(2), out.dim(3));
      for (double& value : values) {
        const bool allowed = value == 0;
        if (out.dtype() == DType::boolean) value = allowed;
        else value = allowed ? 0 : masked;
      }
      move(out.slice(0, b, b + 1).slice(1, h, h + 1), values);
    }
  }
}

}  // namespace plumb
