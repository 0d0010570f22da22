#include "harness/judge/conformance.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numeric>

#include "harness/judge/median.h"
#include "kernels/core/shared_loop.h"

namespace plumb::harness {
namespace {

bool same_value(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

bool any_differs(const std::vector<double>& y, const std::vector<double>& model,
                 const std::vector<uint8_t>& valid) {
  const auto in_part = [&](size_t begin, size_t end) -> uint8_t {
    size_t i = begin;
    while (i < end && (!valid[i] || same_value(y[i], model[i]))) ++i;
    return i < end;
  };
  const std::vector<uint8_t> parts = shared_parts(y.size(), in_part);
  return std::find(parts.begin(), parts.end(), 1) != parts.end();
}

// Roundings of a row's bottleneck that fall otherwise, on average: a sum's own share of each.
double flips_per_row(const ConformanceRule& rule) {
  if (rule.bottleneck.width == 0) return 0;
  return static_cast<double>(rule.bottleneck.width) * kLimits.conformance_growth *
         accumulation_floor({rule.bottleneck.stage}) / rule.u_store;
}

// The least count, at most `most`, that a Poisson variable exceeds with a chance of
// conformance_aside.
int64_t poisson_quantile(double mean, int64_t most) {
  double log_chance = -mean, below = std::exp(log_chance);
  int64_t count = 0;
  while (count < most && 1 - below > kLimits.conformance_aside) {
    ++count;
    log_chance += std::log(mean / static_cast<double>(count));
    below += std::exp(log_chance);
  }
  return count;
}

// What the rows with the largest counts have together, at most aside.outputs of each.
int64_t largest(std::vector<int64_t> counts, const RowsAside& aside) {
  const auto end = counts.begin() + std::min(aside.rows, static_cast<int64_t>(counts.size()));
  std::partial_sort(counts.begin(), end, counts.end(), std::greater<>());
  return std::accumulate(counts.begin(), end, int64_t{0}, [&](int64_t sum, int64_t count) {
    return sum + std::min(count, aside.outputs);
  });
}

// Where more than one in so many differ, the count alone decides, or simulations do.
constexpr size_t kFew = 8;

void add_small_parts(SmallParts& parts, const Conformance& out, const Differing& differing,
                     const ConformanceRule& rule, double negligible) {
  if (static_cast<int64_t>(differing.positions.size()) != out.differ) return;
  const double normal = std::ldexp(1.0, info(rule.storage).min_exponent);
  measure_small_parts(parts, differing, rule.u_store, normal, negligible * noise_of_sums(rule));
  limit_parts(parts, out, rule);
}

}  // namespace

double noise(const std::vector<double>& model, const std::vector<uint8_t>& valid) {
  const double middle = upper_median(model.size(), [&](size_t i) {
    return valid[i] && std::isfinite(model[i]) ? std::fabs(model[i]) : std::nan("");
  });
  return kLimits.conformance_noise * unit_roundoff(DType::f32) * middle;
}

ConformanceRule conformance_rule(const Rule& rule, const Floors& floors, int64_t columns) {
  ConformanceRule out{floors.accumulation,
                      unit_roundoff(rule.contract.storage),
                      accumulation_floor(rule.cascade_stages),
                      rule.cascade_outputs,
                      columns,
                      rule.leaf,
                      rule.others,
                      rule.contract.storage,
                      rule.bottleneck};
  if (flips_per_row(out) >= 1) out.cascade += accumulation_floor({out.bottleneck.stage});
  return out;
}

RowsAside rows_aside(const ConformanceRule& rule, int64_t rows) {
  const double flips = flips_per_row(rule);
  if (flips == 0 || flips >= 1) return {};
  // Behind a further sum of rounded values, a row that moved can change in all of its outputs.
  const double share = rule.cascade > 0 ? 1
                                        : kLimits.conformance_cascade /
                                              std::sqrt(static_cast<double>(rule.bottleneck.width));
  const double outputs = std::ceil(std::min(1.0, share) * static_cast<double>(rule.columns));
  return {poisson_quantile(static_cast<double>(rows) * flips, rows), static_cast<int64_t>(outputs)};
}

int64_t alike_in_row(const Tensor& x) {
  if (size_of(x.dtype()) != 2 || !is_floating(x.dtype()) || x.numel() == 0) return 0;
  const size_t significands = x.dtype() == DType::bf16 ? 1 << 7 : 1 << 10;
  const int64_t columns = x.dim(-1);
  const auto* bits = reinterpret_cast<const uint16_t*>(x.data<char>());
  std::vector<int64_t> times(significands, 0);
  int64_t most = 1;
  for (int64_t begin = 0; begin < x.numel(); begin += columns) {
    for (int64_t i = begin; i < begin + columns; ++i) {
      const bool zero = bits[i] % (1 << 15) == 0;
      if (!zero) most = std::max(most, ++times[bits[i] % significands]);
    }
    std::fill(times.begin(), times.end(), 0);
  }
  return most - 1;
}

bool conformance_applies(DType storage, int64_t n, const RowsAside& aside) {
  return (storage == DType::f16 || storage == DType::bf16) &&
         n - aside.rows * aside.outputs >= kLimits.conformance_least;
}

Conformance conformance(const std::vector<double>& y, const std::vector<double>& model,
                        const std::vector<uint8_t>& valid, const ConformanceRule& rule,
                        SmallParts* parts) {
  Conformance out;
  const auto columns = static_cast<size_t>(rule.columns);
  std::vector<int64_t> differ_in(y.size() / columns, 0);  // of each row
  const double negligible = any_differs(y, model, valid) ? noise(model, valid) : 0;
  struct Count {
    int64_t n = 0, differ = 0, first = -1;
    std::vector<int64_t> positions = {};
  };
  const LoopParts rows(differ_in.size(), 1, y.size());
  std::vector<Count> counts(rows.count());
  for_parts(rows, [&](size_t begin, size_t end, size_t part) {
    Count count;
    for (size_t i = begin * columns; i < end * columns; ++i) {
      if (!valid[i]) continue;
      ++count.n;
      if (same_value(y[i], model[i])) continue;
      const double ulp = 2 * rule.u_store * std::fabs(model[i]);
      const bool undetermined = ulp <= kLimits.conformance_undetermined * negligible;
      if (undetermined && std::fabs(y[i] - model[i]) <= ulp + negligible) continue;
      if (count.differ++ == 0) count.first = static_cast<int64_t>(i);
      ++differ_in[i / columns];
      if (parts && count.positions.size() <= (end - begin) * columns / kFew) {
        count.positions.push_back(static_cast<int64_t>(i));
      }
    }
    counts[part] = std::move(count);
  });
  Differing differing{y, model, {}, rule.columns};
  for (const Count& count : counts) {
    out.n += count.n;
    if (out.differ == 0) out.first = count.first;
    out.differ += count.differ;
    differing.positions.insert(differing.positions.end(), count.positions.begin(),
                               count.positions.end());
  }
  out.set_aside = largest(std::move(differ_in), rows_aside(rule, out.n / rule.columns));
  hold(out, rule);
  if (parts && out.differ > 0) add_small_parts(*parts, out, differing, rule, negligible);
  return out;
}

void hold(Conformance& out, const ConformanceRule& rule) {
  const double growth = kLimits.conformance_growth;
  out.q = kLimits.conformance_base + growth * rule.accumulation / rule.u_store +
          kLimits.conformance_cascade * std::sqrt(growth * rule.cascade / rule.u_store);
  const double expected = static_cast<double>(out.n) * out.q;
  const double limit = expected + kLimits.conformance_sigmas * std::sqrt(expected);
  out.limit = std::max(kLimits.conformance_count, limit) + static_cast<double>(rule.fed);
  out.passed = !!(static_cast<double>(out.differ - out.set_aside) <= out.limit);
}

double noise_of_sums(const ConformanceRule& rule) {
  return 1 + kLimits.element_accumulation * rule.accumulation /
                 (kLimits.conformance_noise * unit_roundoff(DType::f32));
}

// What the rows of a bottleneck turn over is no matter of channels.
void limit_parts(SmallParts& parts, const Conformance& out, const ConformanceRule& rule) {
  if (rule.leaf) {
    parts.distance_limit = std::max(kLimits.furthest_bit, kLimits.furthest_of_others * rule.others);
  }
  if (rule.bottleneck.width == 0) {
    const double allowed = std::max(out.q, out.limit / static_cast<double>(out.n));
    parts.crowd_limit = crowd_limit(out.n / rule.columns, rule.columns, allowed);
  }
}

std::string share_that_differs(const Conformance& found) {
  const double share =
      static_cast<double>(found.differ) / std::max(static_cast<double>(found.n), 1.0);
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, share < 0.995 ? "%.2g %%" : "%.0f %%", 100 * share);
  return buffer;
}

}  // namespace plumb::harness
