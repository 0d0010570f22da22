#include "harness/judge/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "harness/judge/distribution.h"
#include "harness/judge/limits.h"
#include "harness/judge/sums.h"

namespace plumb::harness {
namespace {

constexpr size_t kWorstGroups = 5;

// sum d^2 of every group, in index order.
std::vector<double> group_energy(const std::vector<double>& values, const ReferenceScales& scales,
                                 const std::vector<uint8_t>& skipped, const Partition& family) {
  std::vector<double> out(static_cast<size_t>(family.groups), 0);
  add_groups(out, family, [&](size_t i) {
    const double d = values[i] - scales.o[i];
    return scales.usable[i] && !skipped[i] ? d * d : 0.0;
  });
  return out;
}

// v_g of the groups that count, 0 for the others.
std::vector<double> group_errors(const std::vector<double>& values, const ReferenceScales& scales,
                                 const std::vector<uint8_t>& skipped, const FamilyScales& family) {
  std::vector<double> out = group_energy(values, scales, skipped, family.partition);
  for (size_t g = 0; g < out.size(); ++g) {
    const bool counts = family.sizes[g] >= kLimits.smallest_group;
    const double rms = counts ? std::sqrt(out[g] / static_cast<double>(family.sizes[g])) : 0;
    out[g] = quotient(rms, family.scales[g]);
  }
  return out;
}

GroupStatistic worst_group(const std::vector<double>& errors, const FamilyScales& family) {
  GroupStatistic out;
  out.family = family.partition.name;
  for (size_t g = 0; g < errors.size() && out.worst < 0;
       ++g) {  // the first that counts, if all are 0
    if (family.sizes[g] < kLimits.smallest_group) continue;
    out.worst = static_cast<int64_t>(g);
    out.worst_kappa = family.kappas[g];
  }
  for (size_t g = 0; g < errors.size(); ++g) {
    if (exceeds(errors[g], out.value)) out.value = errors[g];
    if (!exceeds(errors[g] / family.kappas[g], out.normalised)) continue;
    out.normalised = errors[g] / family.kappas[g];
    out.worst = static_cast<int64_t>(g);
    out.worst_value = errors[g];
    out.worst_kappa = family.kappas[g];
  }
  return out;
}

// The largest of [0, n), and where it is first.
template <class Term>
NamedValue largest_of(size_t n, Term term) {
  NamedValue out;
  const auto take = [](NamedValue& largest, double v, int64_t at) {
    if (!exceeds(v, largest.value)) return;
    largest.value = v;
    largest.at = at;
  };
  const auto of_part = [&](size_t begin, size_t end) {
    NamedValue part;
    for (size_t i = begin; i < end; ++i) take(part, term(i), static_cast<int64_t>(i));
    return part;
  };
  for (const NamedValue& part : shared_parts(n, of_part)) take(out, part.value, part.at);
  return out;
}

// Adds the counts of a part of the elements to those of others.
void add_counts(std::vector<int64_t>& counts, const std::vector<int64_t>& others) {
  for (size_t i = 0; i < counts.size(); ++i) counts[i] += others[i];
}

// What an informative statistic is computed from.
struct Sample {
  const std::vector<double>& y;
  const ReferenceScales& scales;
  std::vector<uint8_t> judged;
  std::vector<int64_t> octaves = std::vector<int64_t>(kOctaves, 0);
  double unit = 0;  // u of the storage
  int64_t n = 0;
  double energy = 0;  // sum d^2

  double o(size_t i) const { return scales.o[i]; }
  double d(size_t i) const { return y[i] - scales.o[i]; }
  double scale(size_t i) const {
    const auto at = static_cast<int64_t>(i);
    return scales.element_scale(at / scales.layout.columns, at);
  }
  // Sum and largest of term(i) over judged elements.
  template <class Term>
  double sum(Term term) const {
    return chunked_sum(y.size(), [&](size_t i) { return judged[i] ? term(i) : 0.0; });
  }
  template <class Term>
  NamedValue largest(Term term) const {
    return largest_of(y.size(), [&](size_t i) { return judged[i] ? term(i) : 0.0; });
  }
};

NamedValue max_abs(const Sample& s) {
  return s.largest([&](size_t i) { return std::fabs(s.d(i)); });
}

NamedValue max_rel(const Sample& s) {
  return s.largest([&](size_t i) { return quotient(std::fabs(s.d(i)), std::fabs(s.o(i))); });
}

// Mean of d / (u s_i): 0 for unbiased rounding.
NamedValue sign_bias(const Sample& s) {
  const double sum = s.sum([&](size_t i) { return quotient(s.d(i), s.unit * s.scale(i)); });
  return {.value = quotient(sum, static_cast<double>(s.n))};
}

template <int kPerMille>
NamedValue z_quantile(const Sample& s) {
  return {.value = octave_quantile(s.octaves, kPerMille / 1000.0)};
}

NamedValue nmse(const Sample& s) { return {.value = quotient(s.energy, s.scales.sum_o2)}; }

NamedValue snr_db(const Sample& s) {
  return {.value = -10 * std::log10(quotient(s.energy, s.scales.sum_o2))};
}

// 1 - cosine of the angle between y and o, as half the squared distance of the unit vectors (1 - x
// would cancel), after `mean_y` and `mean_o` are subtracted.
double one_minus_angle(const Sample& s, double mean_y, double mean_o) {
  const double y2 = s.sum([&](size_t i) { return (s.y[i] - mean_y) * (s.y[i] - mean_y); });
  const double o2 = s.sum([&](size_t i) { return (s.o(i) - mean_o) * (s.o(i) - mean_o); });
  const double y_norm = std::sqrt(y2), o_norm = std::sqrt(o2);
  return s.sum([&](size_t i) {
    const double apart = quotient(s.y[i] - mean_y, y_norm) - quotient(s.o(i) - mean_o, o_norm);
    return apart * apart / 2;
  });
}

NamedValue one_minus_cosine(const Sample& s) { return {.value = one_minus_angle(s, 0, 0)}; }

NamedValue one_minus_pcc(const Sample& s) {
  const auto n = static_cast<double>(s.n);
  const double mean_y = quotient(s.sum([&](size_t i) { return s.y[i]; }), n);
  const double mean_o = quotient(s.sum([&](size_t i) { return s.o(i); }), n);
  return {.value = one_minus_angle(s, mean_y, mean_o)};
}

// Share of elements inside torch.testing.assert_close's default tolerances for the storage dtype.
NamedValue inside_torch_defaults(const Sample& s) {
  double relative = 1.3e-6;
  if (s.scales.storage == DType::f16) relative = 1e-3;
  if (s.scales.storage == DType::bf16) relative = 1.6e-2;
  if (s.scales.storage == DType::f64) relative = 1e-7;
  const double absolute = s.scales.storage == DType::f64 ? 1e-7 : 1e-5;
  const double inside = s.sum([&](size_t i) {
    return std::fabs(s.d(i)) <= absolute + relative * std::fabs(s.o(i)) ? 1.0 : 0.0;
  });
  return {.value = quotient(inside, static_cast<double>(s.n))};
}

// The table of informative statistics: everything that prints or stores them iterates over it.
struct Row {
  std::string_view name;
  NamedValue (*compute)(const Sample&);
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

Sample sample_of(const std::vector<double>& y, const ReferenceScales& scales,
                 const std::vector<uint8_t>& skipped) {
  Sample out{y, scales, scales.usable};
  out.unit = is_floating(scales.storage) ? unit_roundoff(scales.storage) : 1;
  const auto octaves_of = [&](size_t begin, size_t end) {
    std::vector<int64_t> counts(kOctaves, 0);
    for (size_t i = begin; i < end; ++i) {
      out.judged[i] = scales.usable[i] && !skipped[i];
      if (!out.judged[i]) continue;
      ++counts[static_cast<size_t>(
          octave_of(quotient(std::fabs(out.d(i)), out.unit * out.scale(i))))];
    }
    return counts;
  };
  for (const auto& counts : shared_parts(y.size(), octaves_of)) add_counts(out.octaves, counts);
  out.n = std::accumulate(out.octaves.begin(), out.octaves.end(), int64_t{0});
  out.energy = out.sum([&](size_t i) { return out.d(i) * out.d(i); });
  return out;
}

std::vector<int64_t> ulp_histogram(const Sample& s) {
  const auto bins_of = [&](size_t begin, size_t end) {
    std::vector<int64_t> counts(kUlpBins, 0);
    for (size_t i = begin; i < end; ++i) {
      if (!s.judged[i]) continue;
      const double rounded = round_quickly(s.scales.storage, s.o(i));
      ++counts[static_cast<size_t>(ulp_bin(ulp_distance(s.scales.storage, s.y[i], rounded)))];
    }
    return counts;
  };
  std::vector<int64_t> out(kUlpBins, 0);
  for (const auto& counts : shared_parts(s.y.size(), bins_of)) add_counts(out, counts);
  return out;
}

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

double tensor_error(const std::vector<double>& values, const ReferenceScales& scales,
                    const std::vector<uint8_t>& skipped) {
  const double energy = chunked_sum(values.size(), [&](size_t i) {
    const double d = values[i] - scales.o[i];
    return scales.usable[i] && !skipped[i] ? d * d : 0.0;
  });
  return std::sqrt(quotient(energy, scales.sum_o2));
}

FamilyErrors family_errors(const std::vector<double>& values, const ReferenceScales& scales,
                           const std::vector<uint8_t>& skipped) {
  FamilyErrors out;
  for (const FamilyScales& family : scales.families) {
    out.push_back(group_errors(values, scales, skipped, family));
  }
  return out;
}

Statistics statistics(const std::vector<double>& values, const ReferenceScales& scales,
                      const std::vector<uint8_t>& skipped) {
  return statistics(values, scales, skipped, family_errors(values, scales, skipped));
}

Statistics statistics(const std::vector<double>& values, const ReferenceScales& scales,
                      const std::vector<uint8_t>& skipped, const FamilyErrors& errors) {
  Statistics out;
  out.tensor = tensor_error(values, scales, skipped);
  const double along = chunked_sum(values.size(), [&](size_t i) {
    return scales.usable[i] && !skipped[i] ? (values[i] - scales.o[i]) * scales.o[i] : 0.0;
  });
  out.gain = quotient(along, scales.sum_o2);
  for (size_t k = 0; k < errors.size(); ++k) {
    out.families.push_back(worst_group(errors[k], scales.families[k]));
  }
  const NamedValue element = largest_of(values.size(), [&](size_t i) {
    if (!scales.usable[i] || skipped[i]) return 0.0;
    const auto at = static_cast<int64_t>(i);
    const double scale = scales.element_scale(at / scales.layout.columns, at);
    return quotient(std::fabs(values[i] - scales.o[i]), scale);
  });
  out.element = element.value;
  out.element_at = element.at;
  return out;
}

std::vector<uint8_t> not_finite(const std::vector<double>& values) {
  std::vector<uint8_t> out(values.size());
  shared_loop(values.size(), [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) out[i] = !std::isfinite(values[i]);
  });
  return out;
}

Details details(const std::vector<double>& y, const ReferenceScales& scales,
                const std::vector<uint8_t>& skipped, const FamilyErrors& errors) {
  const Sample sample = sample_of(y, scales, skipped);
  Details out;
  for (const Row& row : kInformative) {
    NamedValue value = row.compute(sample);
    value.name = row.name;
    out.values.push_back(value);
  }
  out.octaves = sample.octaves;
  out.ulps = ulp_histogram(sample);
  for (size_t k = 0; k < errors.size(); ++k) {
    append_worst(out.worst_groups, errors[k], scales, scales.families[k]);
  }
  return out;
}

}  // namespace plumb::harness
