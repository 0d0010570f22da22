#include "harness/judge/details.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "harness/judge/distribution.h"
#include "harness/judge/error_segments.h"
#include "harness/judge/lanes.h"
#include "harness/judge/sums.h"

namespace plumb::harness {
namespace {

constexpr size_t kWorstGroups = 5;

// torch.testing.assert_close's default tolerances for a storage dtype.
struct Tolerance {
  double relative = 1.3e-6, absolute = 1e-5;
};

Tolerance torch_default(DType storage) {
  if (storage == DType::f16) return {1e-3, 1e-5};
  if (storage == DType::bf16) return {1.6e-2, 1e-5};
  if (storage == DType::f64) return {1e-7, 1e-7};
  return {};
}

struct Largest {
  double value = 0;
  int64_t at = -1;

  void take(double x, int64_t position) {
    if (!exceeds(x, value)) return;
    value = x;
    at = position;
  }
};

// Sums of squares and products of d, o and y = o + d.
struct Squares {
  double d2 = 0, d_o = 0, o2 = 0, y_o = 0, y2 = 0;

  void add(const double* d, const double* o, size_t n) {
    d2 += lane_sum(n, [&](size_t i) { return d[i] * d[i]; });
    d_o += lane_sum(n, [&](size_t i) { return d[i] * o[i]; });
    o2 += lane_sum(n, [&](size_t i) { return o[i] * o[i]; });
    y_o += lane_sum(n, [&](size_t i) { return (o[i] + d[i]) * o[i]; });
    y2 += lane_sum(n, [&](size_t i) { return (o[i] + d[i]) * (o[i] + d[i]); });
  }
  void add(const Squares& part) {
    d2 += part.d2;
    d_o += part.d_o;
    o2 += part.o2;
    y_o += part.y_o;
    y2 += part.y2;
  }
  // 1 - cosine of the angle between o and y. (|y| |o| - y o) / (|y| |o|), expanded by
  // |y| |o| + y o, is (o2 d2 - d_o^2) / ...: nothing cancels where y is near o.
  double one_minus_cosine() const {
    if (!std::isfinite(y2)) return std::numeric_limits<double>::quiet_NaN();
    if (o2 == 0 || y2 == 0) return o2 == y2 ? 0 : 0.5;
    const double norms = std::sqrt(o2) * std::sqrt(y2);
    if (y_o < 0 || d2 > y2) return std::max(1 - y_o / norms, 0.0);
    return std::max(o2 * d2 - d_o * d_o, 0.0) / (norms * (norms + y_o));
  }
};

// What the table is computed from: sums over the elements that count, d = y - o.
struct Totals {
  int64_t n = 0;
  double d = 0, o = 0;  // sum d, sum o
  Squares squares;
  double z = 0;        // sum d / s_i
  int64_t inside = 0;  // elements within torch's default tolerances
  Largest abs, rel;    // |d|, |d| / |o|
  std::array<int64_t, kOctaves> octaves{};
  std::array<int64_t, kUlpBins> ulps{};
  Squares centred;  // of d and o less their means

  void add(const Totals& part) {
    n += part.n;
    d += part.d;
    o += part.o;
    squares.add(part.squares);
    z += part.z;
    inside += part.inside;
    if (part.abs.at >= 0) abs.take(part.abs.value, part.abs.at);
    if (part.rel.at >= 0) rel.take(part.rel.value, part.rel.at);
    for (size_t i = 0; i < octaves.size(); ++i) octaves[i] += part.octaves[i];
    for (size_t i = 0; i < ulps.size(); ++i) ulps[i] += part.ulps[i];
  }
};

// One output's values, and what is the same for all of its elements.
struct Sample {
  const std::vector<double>& y;
  const ReferenceScales& scales;
  const std::vector<uint8_t>& skipped;
  Tolerance torch;
  double unit;  // u of the storage, a power of two

  Sample(const std::vector<double>& of, const ReferenceScales& by, const std::vector<uint8_t>& less)
      : y(of),
        scales(by),
        skipped(less),
        torch(torch_default(by.storage)),
        unit(is_floating(by.storage) ? unit_roundoff(by.storage) : 1) {}

  void load(ErrorSegment& s, size_t row, size_t column, size_t n) const {
    s.load(y, scales, skipped, row * scales.plan->columns + column, n);
  }
};

// Largest |d| and |d| / |o|, where either may be infinite or NaN.
void add_largest_in_turn(Totals& to, const ErrorSegment& s) {
  for (size_t i = 0; i < s.n; ++i) {
    const auto at = static_cast<int64_t>(s.begin + i);
    to.abs.take(std::fabs(s.d[i]), at);
    to.rel.take(quotient(std::fabs(s.d[i]), std::fabs(s.o[i])), at);
  }
}

void add_largest(Totals& to, const ErrorSegment& s, bool finite) {
  const auto rel = [&](size_t i) {
    return s.d[i] == 0 ? 0.0 : std::fabs(s.d[i]) / std::fabs(s.o[i]);
  };
  if (finite &&
      !exceeds(lane_max(s.n, [&](size_t i) { return std::fabs(s.d[i]); }), to.abs.value) &&
      !exceeds(lane_max(s.n, rel), to.rel.value)) {
    return;
  }
  add_largest_in_turn(to, s);
}

// d / s_i, and their octaves in units of u.
void add_scaled(Totals& to, const Sample& sample, const ErrorSegment& s, double row_scale) {
  alignas(64) double z[kSegment];
  if (row_scale > 0) {
    for (size_t i = 0; i < s.n; ++i) z[i] = s.d[i] / std::max(std::fabs(s.o[i]), row_scale);
  } else {
    for (size_t i = 0; i < s.n; ++i) z[i] = quotient(s.d[i], std::fabs(s.o[i]));
  }
  to.z += lane_sum(s.n, [&](size_t i) { return z[i]; });
  const double units = 1 / sample.unit;
  std::array<std::array<int32_t, kOctaves>, 4> counts{};  // neighbours are often in one octave
  for (size_t i = 0; i < s.n; ++i) {
    ++counts[i % 4][static_cast<size_t>(octave_of(std::fabs(z[i]) * units))];
  }
  for (const auto& some : counts) {
    for (size_t k = 0; k < some.size(); ++k) to.octaves[k] += some[k];
  }
  for (size_t i = 0; i < s.n && !s.all; ++i) to.octaves[0] -= !s.counts[i];  // d is 0 there
}

void add_ulps(Totals& to, const Sample& sample, const ErrorSegment& s) {
  alignas(64) double rounded[kSegment];
  const DType storage = sample.scales.storage;
  round_all(storage, s.o, s.n, rounded);
  for (size_t i = 0; i < s.n; ++i) {
    if (!s.counts[i]) continue;
    const double y = sample.y[s.begin + i];
    const bool same = y == rounded[i];
    ++to.ulps[same ? 0 : static_cast<size_t>(ulp_bin(ulp_distance(storage, y, rounded[i])))];
  }
}

void add_segment(Totals& to, const Sample& sample, const ErrorSegment& s, double row_scale) {
  const auto &d = s.d, &o = s.o;
  Squares squares;
  squares.add(d, o, s.n);
  to.squares.add(squares);
  to.d += lane_sum(s.n, [&](size_t i) { return d[i]; });
  to.o += lane_sum(s.n, [&](size_t i) { return o[i]; });
  int64_t n = 0, inside = 0;
  for (size_t i = 0; i < s.n; ++i) {
    const double allowed = sample.torch.absolute + sample.torch.relative * std::fabs(o[i]);
    inside += std::fabs(d[i]) <= allowed;
  }
  for (size_t i = 0; i < s.n; ++i) n += s.counts[i];
  to.n += n;
  to.inside += inside - (static_cast<int64_t>(s.n) - n);  // what does not count is inside
  add_largest(to, s, std::isfinite(squares.d2));
  add_scaled(to, sample, s, row_scale);
  add_ulps(to, sample, s);
}

Totals totals_of(const Sample& sample) {
  const RowPlan& plan = *sample.scales.plan;
  Totals out;
  const auto of_part = [&](size_t part) {
    Totals sums;
    ErrorSegment s;
    const auto add = [&](size_t row, size_t column, size_t n) {
      sample.load(s, row, column, n);
      add_segment(sums, sample, s, sample.scales.row_scale[row]);
    };
    for_segments(plan, part, add, [](size_t) {});
    return sums;
  };
  for (const Totals& part : of_row_parts(plan, of_part)) out.add(part);
  return out;
}

// The sums of squares about the means, which the means must be known for.
void add_centred(Totals& to, const Sample& sample) {
  const RowPlan& plan = *sample.scales.plan;
  const auto n = static_cast<double>(to.n);
  const double mean_d = quotient(to.d, n), mean_o = quotient(to.o, n);
  const auto of_part = [&](size_t part) {
    Squares sums;
    ErrorSegment s;
    const auto add = [&](size_t row, size_t column, size_t length) {
      sample.load(s, row, column, length);
      for (size_t i = 0; i < length; ++i) {
        s.d[i] = s.counts[i] ? s.d[i] - mean_d : 0.0;
        s.o[i] = s.counts[i] ? s.o[i] - mean_o : 0.0;
      }
      sums.add(s.d, s.o, length);
    };
    for_segments(plan, part, add, [](size_t) {});
    return sums;
  };
  for (const Squares& part : of_row_parts(plan, of_part)) to.centred.add(part);
}

NamedValue max_abs(const Sample&, const Totals& t) {
  return {.value = t.abs.value, .at = t.abs.at};
}

NamedValue max_rel(const Sample&, const Totals& t) {
  return {.value = t.rel.value, .at = t.rel.at};
}

// Mean of d / (u s_i): 0 for unbiased rounding.
NamedValue sign_bias(const Sample& s, const Totals& t) {
  return {.value = quotient(t.z / s.unit, static_cast<double>(t.n))};
}

template <int kPerMille>
NamedValue z_quantile(const Sample&, const Totals& t) {
  return {.value = octave_quantile({t.octaves.begin(), t.octaves.end()}, kPerMille / 1000.0)};
}

NamedValue nmse(const Sample& s, const Totals& t) {
  return {.value = quotient(t.squares.d2, s.scales.sum_o2)};
}

NamedValue snr_db(const Sample& s, const Totals& t) {
  return {.value = -10 * std::log10(quotient(t.squares.d2, s.scales.sum_o2))};
}

NamedValue one_minus_cosine(const Sample&, const Totals& t) {
  return {.value = t.squares.one_minus_cosine()};
}

NamedValue one_minus_pcc(const Sample&, const Totals& t) {
  return {.value = t.centred.one_minus_cosine()};
}

// Share of elements inside torch.testing.assert_close's default tolerances for the storage dtype.
NamedValue inside_torch_defaults(const Sample&, const Totals& t) {
  return {.value = quotient(static_cast<double>(t.inside), static_cast<double>(t.n))};
}

// The table of informative statistics: everything that prints or stores them iterates over it.
struct Row {
  std::string_view name;
  NamedValue (*compute)(const Sample&, const Totals&);
};

constexpr Row kInformative[] = {
    {"max_abs", max_abs},
    {"max_rel", max_rel},
    {"sign_bias", sign_bias},
    {"z_p50", z_quantile<500>},
    {"z_p90", z_quantile<900>},
    {"z_p99", z_quantile<990>},
    {"z_p999", z_quantile<999>},
    {"z_max", z_quantile<1000>},
    {"nmse", nmse},
    {"snr_db", snr_db},
    {"one_minus_cosine", one_minus_cosine},
    {"one_minus_pcc", one_minus_pcc},
    {"inside_torch_defaults", inside_torch_defaults},
};

void append_worst(std::vector<WorstGroup>& out, const std::vector<double>& errors,
                  const ReferenceScales& scales, const FamilyScales& family) {
  std::vector<size_t> order;
  for (size_t g = 0; g < errors.size(); ++g) {
    if (!(errors[g] <= 0)) order.push_back(g);
  }
  const auto size_for_order = [&](size_t g) {  // NaN first
    return std::isnan(errors[g]) ? std::numeric_limits<double>::infinity() : errors[g];
  };
  const size_t count = std::min(kWorstGroups, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](size_t a, size_t b) {
                      const double x = size_for_order(a), y = size_for_order(b);
                      return x != y ? x > y : a < b;
                    });
  for (size_t k = 0; k < count; ++k) {
    const auto group = static_cast<int64_t>(order[k]);
    out.push_back({family.partition.name, group_name(scales.layout, family.partition, group),
                   errors[order[k]]});
  }
}

}  // namespace

Details details(const std::vector<double>& y, const ReferenceScales& scales,
                const std::vector<uint8_t>& skipped, const FamilyErrors& errors) {
  const Sample sample(y, scales, skipped);
  Totals totals = totals_of(sample);
  add_centred(totals, sample);
  Details out;
  for (const Row& row : kInformative) {
    NamedValue value = row.compute(sample, totals);
    value.name = row.name;
    out.values.push_back(value);
  }
  out.octaves.assign(totals.octaves.begin(), totals.octaves.end());
  out.ulps.assign(totals.ulps.begin(), totals.ulps.end());
  for (size_t k = 0; k < errors.size(); ++k) {
    append_worst(out.worst_groups, errors[k], scales, scales.families[k]);
  }
  return out;
}

}  // namespace plumb::harness
