// Attention in one go. Formulas and roundings: ops.h.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "kernels/oracle/oracle_ops.h"

namespace plumb {
namespace {

// One query's weights on the keys, which they leave in `scores`, and what they are divided by.
class Weighing {
 public:
  explicit Weighing(DType storage) : storage_(storage), noise_(storage) {
    ArithmeticScope* scope = ArithmeticScope::current();
    if (scope && size_of(storage) == 2) tile_ = scope->arithmetic().key_tile;
  }

  double weigh(std::span<double> scores) const {
    if (tile_) return weigh_in_tiles(scores, static_cast<size_t>(*tile_));
    double largest = kLowest, total = 0;
    for (const double score : scores) largest = std::fmax(largest, score);
    for (double& score : scores) total += score = noise_.function(std::exp(score - largest));
    return noise_.sum(total, total, scores.size());
  }

 private:
  // Flash attention: a tile's weights are rounded against the largest score so far, and what they
  // made is brought to the last one's scale by float32 factors, which round nothing here.
  double weigh_in_tiles(std::span<double> scores, size_t tile) const {
    double largest = kLowest, total = 0;
    for (size_t begin = 0; begin < scores.size(); begin += tile) {
      const size_t end = std::min(begin + tile, scores.size());
      const double before = largest;
      for (size_t s = begin; s < end; ++s) largest = std::fmax(largest, scores[s]);
      const double rescale = std::exp(before - largest);
      for (size_t s = 0; s < begin; ++s) scores[s] *= rescale;
      total *= rescale;
      for (size_t s = begin; s < end; ++s) {
        const double weight = noise_.function(std::exp(scores[s] - largest));
        total += weight;
        scores[s] = round_to(storage_, weight);
      }
    }
    return noise_.sum(total, total, scores.size());
  }

  DType storage_;
  Noise noise_;
  std::optional<int64_t> tile_;
};

}  // namespace

void OracleOps::do_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                        const AttentionMask& mask, const SdpaParams& params) {
  const int64_t heads = q.dim(1), group = heads / k.dim(1), queries = q.dim(2), keys = k.dim(2);
  const int64_t head_dim = q.dim(3), v_head_dim = v.dim(3);
  // What other programs round in attention in one go.
  const Rounding scaled(q.dtype(), "sdpa.scaled_query", false);
  const Rounding rounded_score(q.dtype(), "sdpa.score", false);
  const Rounding rounded_weight(q.dtype(), "sdpa.weight", false);
  const Rounding rounding(out.dtype(), "sdpa");
  const Noise noise(q.dtype());
  const Weighing weighing(q.dtype());
  const double score_scale = scaled.rounds() ? 1 : params.scale;
  const auto at = [](const Tensor& t, int64_t b, int64_t h) {
    return t.slice(0, b, b + 1).slice(1, h, h + 1);
  };
  const auto row_of = [](std::vector<double>& matrix, int64_t row, int64_t columns) {
    return std::span(matrix).subspan(static_cast<size_t>(row * columns),
                                     static_cast<size_t>(columns));
  };
  for (int64_t b = 0; b < q.dim(0); ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      std::vector<double> qs = values_of(at(q, b, h));
      const Right ks(at(k, b, h / group)), vs(at(v, b, h / group));
      const std::vector<double> additive = additive_mask(mask, b, h, queries, keys);
      if (scaled.rounds()) {
        for (double& x : qs) x = scaled(x * scaled(params.scale));
      }
      std::vector<double> weights = product(queries, keys, head_dim, qs, ks, true, noise);
      std::vector<bool> sees(static_cast<size_t>(queries));
      for (int64_t t = 0; t < queries; ++t) {
        const std::span<double> scores = row_of(weights, t, keys);
        bool any = false;
        for (size_t s = 0; s < scores.size(); ++s) {
          const double m = additive[static_cast<size_t>(t * keys) + s];
          if (m == kLowest) {
            scores[s] = kLowest;
            continue;
          }
          any = true;
          double score = rounded_score(scores[s] * score_scale);
          if (params.softcap) {
            score = noise.function(std::tanh(score / *params.softcap)) * *params.softcap;
          }
          note_score(score);
          scores[s] = score + m;
        }
        sees[static_cast<size_t>(t)] = any || mask.fully_masked != FullyMasked::zero;
        const double total = weighing.weigh(scores);
        for (double& weight : scores) weight = rounded_weight(weight / total);
      }
      std::vector<double> result = product(queries, v_head_dim, keys, weights, vs, false, noise);
      for (int64_t t = 0; t < queries; ++t) {
        for (double& y : row_of(result, t, v_head_dim)) {
          y = sees[static_cast<size_t>(t)] ? rounding(y) : 0;
        }
      }
      move(out.slice(0, b, b + 1).slice(2, h, h + 1), result);
    }
  }
}

}  // namespace plumb
