#include "harness/judge/small_parts.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "harness/judge/limits.h"

namespace plumb::harness {
namespace {

double distance_of(double y, double m, double unit, double normal, double noise) {
  if (!std::isfinite(y) || !std::isfinite(m)) return 0;  // classes are settled elsewhere
  const double off = std::max(std::fabs(y - m) - noise, 0.0);
  return off / (2 * unit * std::max(std::fabs(m), normal));
}

}  // namespace

void measure_small_parts(SmallParts &out, const Differing &differing, double unit, double normal,
                         double noise) {
  struct One {
    int64_t column;
    double m, y;
    int64_t at;
    auto key() const { return std::tie(column, m, y); }
  };
  std::vector<One> all;
  for (const int64_t at : differing.positions) {
    const auto i = static_cast<size_t>(at);
    const double m = differing.model[i], y = differing.y[i];
    const double distance = distance_of(y, m, unit, normal, noise);
    if (distance > out.distance) {
      out.distance = distance;
      out.distance_at = at;
    }
    if (!std::isnan(m) && !std::isnan(y)) all.push_back({at % differing.columns, m, y, at});
  }
  std::sort(all.begin(), all.end(), [](const One &a, const One &b) {
    return std::make_tuple(a.column, a.m, a.y, a.at) < std::make_tuple(b.column, b.m, b.y, b.at);
  });
  int64_t count = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i == 0 || all[i].column != all[i - 1].column) count = 0;
    if (i > 0 && all[i].key() == all[i - 1].key()) continue;
    if (++count <= out.crowd) continue;
    out.crowd = count;
    out.crowd_at = all[i].at;
  }
}

double furthest(const std::vector<double> &y, const std::vector<double> &model,
                const std::vector<uint8_t> &valid, double unit, double normal, double noise) {
  double out = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    if (valid[i]) out = std::max(out, distance_of(y[i], model[i], unit, normal, noise));
  }
  return out;
}

double crowd_limit(int64_t rows, int64_t channels, double q) {
  const double share = std::min(kLimits.crowd_heterogeneity * q, 1.0);
  const double allowed = std::log(kLimits.crowd_chance) -
                         std::log(static_cast<double>(std::max<int64_t>(channels, 1)));
  const auto n = static_cast<double>(rows);
  double chance = 0;  // the logarithm of C(n, k) q^k, which that of k or more is at most
  for (int64_t k = 1; k <= rows; ++k) {
    const auto count = static_cast<double>(k);
    chance += std::log((n - count + 1) / count * share);
    if (count > n * share && chance < allowed) return count - 1;
  }
  return std::numeric_limits<double>::infinity();
}

}  // namespace plumb::harness
