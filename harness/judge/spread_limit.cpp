#include "harness/judge/spread_limit.h"

#include <algorithm>
#include <cmath>

#include "harness/judge/limits.h"

namespace plumb::harness {
namespace {

template <class Value>
SpreadOf over_runs(std::string_view gate, const std::vector<Statistics>& runs, Value value) {
  std::vector<double> values;
  for (const Statistics& run : runs) values.push_back(value(run));
  return spread_of_values(gate, values);
}

}  // namespace

SpreadOf spread_of_values(std::string_view gate, const std::vector<double>& values) {
  SpreadOf out{std::string(gate), 0, 0, 0};
  const auto count = static_cast<double>(values.size());
  for (const double value : values) {
    out.mean += value / count;
    out.largest = std::max(out.largest, value);
  }
  double squares = 0;
  for (const double value : values) squares += (value - out.mean) * (value - out.mean);
  out.deviation = values.size() > 1 ? std::sqrt(squares / (count - 1)) : 0;
  return out;
}

Spread spread_of(const std::vector<Statistics>& runs) {
  Spread out{static_cast<int64_t>(runs.size()), {}};
  if (runs.empty()) return out;
  out.gates.push_back(over_runs("tensor", runs, [](const Statistics& s) { return s.tensor; }));
  for (size_t a = 0; a < runs.front().families.size(); ++a) {
    out.gates.push_back(over_runs(runs.front().families[a].family, runs,
                                  [&](const Statistics& s) { return s.families[a].value; }));
  }
  out.gates.push_back(over_runs("element", runs, [](const Statistics& s) { return s.element; }));
  out.gates.push_back(
      over_runs("gain", runs, [](const Statistics& s) { return std::fabs(s.gain); }));
  return out;
}

SpreadOf spread_of_counts(std::string_view gate, const std::vector<int64_t>& counts) {
  return spread_of_values(gate, {counts.begin(), counts.end()});
}

double bits_limit(const SpreadOf& bits) {
  if (bits.largest == 0) return 0;
  return std::max(kLimits.bits_of_largest * bits.largest + kLimits.conformance_count,
                  bits.mean + kLimits.spread_deviations * bits.deviation);
}

double part_limit(const SpreadOf& part) {
  return std::max(kLimits.bits_of_largest * part.largest,
                  part.mean + kLimits.spread_deviations * part.deviation);
}

double spread_limit(const SpreadOf& spread, DType storage) {
  const double rms = std::hypot(spread.mean, spread.deviation);
  return std::max(c_of(storage) * rms, spread.mean + kLimits.spread_deviations * spread.deviation);
}

}  // namespace plumb::harness
