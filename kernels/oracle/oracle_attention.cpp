// Masks and attention in one go. Formulas and roundings: ops.h.
#include <cmath>
#include <limits>

#include "kernels/oracle/oracle_ops.h"

namespace plumb {
namespace {

constexpr double kLowest = std::numeric_limits<double>::lowest();

// The additive mask of one batch row and head in float64: 0, kLowest where not allowed, or an
// explicit mask's own value (whose lowest finite number means "not allowed" as well).
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

}  // namespace

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
      put(out.slice(0, b, b + 1).slice(1, h, h + 1), values);
    }
  }
}

void OracleOps::do_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                        const AttentionMask& mask, const SdpaParams& params) {
  const int64_t heads = q.dim(1), group = heads / k.dim(1), queries = q.dim(2), keys = k.dim(2);
  const size_t width = static_cast<size_t>(q.dim(3)), value_width = static_cast<size_t>(v.dim(3));
  const auto at = [](const Tensor& t, int64_t b, int64_t h) {
    return values_of(t.slice(0, b, b + 1).slice(1, h, h + 1));
  };
  for (int64_t b = 0; b < q.dim(0); ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const std::vector<double> qs = at(q, b, h), ks = at(k, b, h / group),
                                vs = at(v, b, h / group);
      const std::vector<double> additive = additive_mask(mask, b, h, queries, keys);
      std::vector<double> result(static_cast<size_t>(queries) * value_width, 0.0);
      std::vector<double> scores(static_cast<size_t>(keys));
      for (size_t t = 0; t < static_cast<size_t>(queries); ++t) {
        double largest = kLowest;
        bool any = false;
        for (size_t s = 0; s < scores.size(); ++s) {
          double sum = 0;
          for (size_t d = 0; d < width; ++d) sum += qs[t * width + d] * ks[s * width + d];
          sum *= params.scale;
          if (params.softcap) sum = std::tanh(sum / *params.softcap) * *params.softcap;
          const double m = additive[t * scores.size() + s];
          any = any || m != kLowest;
          scores[s] = m == kLowest ? kLowest : sum + m;
          largest = std::fmax(largest, scores[s]);
        }
        if (!any && mask.fully_masked == FullyMasked::zero) continue;
        double total = 0;
        for (double& score : scores) total += score = std::exp(score - largest);
        for (size_t s = 0; s < scores.size(); ++s) {
          for (size_t d = 0; d < value_width; ++d) {
            result[t * value_width + d] += scores[s] / total * vs[s * value_width + d];
          }
        }
      }
      put(out.slice(0, b, b + 1).slice(2, h, h + 1), result);
    }
  }
}

}  // namespace plumb
