// Gradients of attention. Formulas: ops.h.
#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/oracle/oracle_ops.h"

namespace plumb {
namespace {

// Of one query: its scores, which become weights on the keys, and the derivatives of the scores
// with respect to the products q k^T.
struct QueryWeights {
  std::span<double> weights, slopes;
};

// The products become weights; `added` is the mask, `lse` null where it is not given. Returns
// whether some key is allowed.
bool weigh_query(const QueryWeights& row, std::span<const double> added, const double* lse,
                 bool uniform, const SdpaParams& params, const Noise& noise) {
  double largest = kLowest, total = 0;
  bool any = false;
  for (size_t s = 0; s < row.weights.size(); ++s) {
    if (added[s] == kLowest) {
      row.weights[s] = kLowest;
      row.slopes[s] = 0;
      continue;
    }
    double score = row.weights[s] * params.scale, slope = params.scale;
    if (params.softcap) {
      const double capped = noise.function(std::tanh(score / *params.softcap));
      score = capped * *params.softcap;
      slope *= 1 - capped * capped;
    }
    note_score(score);
    row.weights[s] = score + added[s];
    row.slopes[s] = slope;
    largest = std::fmax(largest, row.weights[s]);
    any = true;
  }
  if (!any) {
    std::ranges::fill(row.weights, uniform ? 1 / static_cast<double>(row.weights.size()) : 0);
    return false;
  }
  if (lse) largest = *lse;
  for (double& weight : row.weights) {
    total += weight = weight == kLowest ? 0 : noise.function(std::exp(weight - largest));
  }
  if (lse) return true;
  total = noise.sum(total, total, row.weights.size());
  for (double& weight : row.weights) weight /= total;
  return true;
}

std::vector<double> columns_first(const std::vector<double>& matrix, size_t rows, size_t columns) {
  std::vector<double> out(matrix.size());
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; ++j) out[j * rows + i] = matrix[i * columns + j];
  }
  return out;
}

void add_to(std::vector<double>& sums, const std::vector<double>& more) {
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += more[i];
}

}  // namespace

void OracleOps::do_sdpa_backward(const Tensor& d_q, const Tensor& d_k, const Tensor& d_v,
                                 const Tensor& d_out, const Tensor& q, const Tensor& k,
                                 const Tensor& v, const Tensor& out, const Tensor& lse,
                                 const AttentionMask& mask, const SdpaParams& params) {
  const int64_t queries = q.dim(2), keys = k.dim(2), head_dim = q.dim(3), v_head_dim = v.dim(3);
  const int64_t kv_heads = k.dim(1), group = kv_heads ? q.dim(1) / kv_heads : 0;
  const auto rows = static_cast<size_t>(queries), columns = static_cast<size_t>(keys);
  const auto values = static_cast<size_t>(v_head_dim);
  const bool uniform = mask.fully_masked != FullyMasked::zero;
  const Noise noise(q.dtype());
  const auto head_of = [](const Tensor& t, int axis, int64_t b, int64_t h) {
    return t.slice(0, b, b + 1).slice(axis, h, h + 1);
  };
  const std::vector<double> sums = lse.defined() ? values_of(lse) : std::vector<double>();
  std::vector<double> all_q, all_k, all_v;
  for (int64_t b = 0; b < q.dim(0); ++b) {
    for (int64_t g = 0; g < kv_heads; ++g) {
      const Right ks(head_of(k, 1, b, g)), vs(head_of(v, 1, b, g));
      std::vector<double> of_k(columns * static_cast<size_t>(head_dim)), of_v(columns * values);
      for (int64_t h = g * group; h < (g + 1) * group; ++h) {
        const Right qs(head_of(q, 1, b, h)), cotangent(head_of(d_out, 2, b, h));
        const std::vector<double> given = values_of(head_of(d_out, 2, b, h));
        const std::vector<double> result = values_of(head_of(out, 2, b, h));
        const std::vector<double> added = additive_mask(mask, b, h, queries, keys);
        std::vector<double> weights =
            product(queries, keys, head_dim, values_of(head_of(q, 1, b, h)), ks, true, noise);
        std::vector<double> slopes(weights.size());
        std::vector<double> of_scores = product(queries, keys, v_head_dim, given, vs, true, noise);
        for (size_t t = 0; t < rows; ++t) {
          double delta = 0, magnitudes = 0;
          for (size_t e = t * values; e < (t + 1) * values; ++e) {
            delta += given[e] * result[e];
            magnitudes += std::fabs(given[e] * result[e]);
          }
          delta = noise.sum(delta, magnitudes, values);
          const QueryWeights row{std::span(weights).subspan(t * columns, columns),
                                 std::span(slopes).subspan(t * columns, columns)};
          const size_t query = static_cast<size_t>(b * q.dim(1) + h) * rows + t;
          const bool sees =
              weigh_query(row, std::span(added).subspan(t * columns, columns),
                          sums.empty() ? nullptr : &sums[query], uniform, params, noise);
          for (size_t s = t * columns; s < (t + 1) * columns; ++s) {
            of_scores[s] = sees && added[s] != kLowest
                               ? weights[s] * noise.difference(of_scores[s], delta) * slopes[s]
                               : 0;
          }
        }
        const std::vector<double> of_q =
            product(queries, head_dim, keys, of_scores, ks, false, noise);
        all_q.insert(all_q.end(), of_q.begin(), of_q.end());
        add_to(of_k, product(keys, head_dim, queries, columns_first(of_scores, rows, columns), qs,
                             false, noise));
        add_to(of_v, product(keys, v_head_dim, queries, columns_first(weights, rows, columns),
                             cotangent, false, noise));
      }
      all_k.insert(all_k.end(), of_k.begin(), of_k.end());
      all_v.insert(all_v.end(), of_v.begin(), of_v.end());
    }
  }
  put(d_q, all_q, "sdpa_backward.d_q");
  put(d_k, all_k, "sdpa_backward.d_k");
  put(d_v, all_v, "sdpa_backward.d_v");
}

}  // namespace plumb
