#include "harness/judge/chain_figures.h"

#include <algorithm>
#include <cmath>

#include "harness/judge/limits.h"
#include "harness/judge/sums.h"

namespace plumb::harness {

std::string_view name_of(Diagnosis diagnosis) {
  switch (diagnosis) {
    case Diagnosis::clean: return "clean";
    case Diagnosis::kernel: return "kernel";
    case Diagnosis::wiring: return "wiring";
    case Diagnosis::inherited: return "inherited";
    case Diagnosis::golden: return "golden suspect";
    case Diagnosis::here: return "wrong here";
    case Diagnosis::unlocated: return "wrong here or before";
    case Diagnosis::saturated: return "saturated";
  }
  return "?";
}

double ChainRow::inherited(const std::vector<ChainRow>& rows) const {
  return before < 0 ? kNoFigure : amplification * rows[static_cast<size_t>(before)].chained;
}

double ChainRow::excess() const {
  return std::isnan(forecast) ? kNoFigure : quotient(chained, std::max(forecast, floor));
}

double ChainRow::excess_limit() const { return kLimits.chain_excess * kappa(vectors * width, 1); }

bool ChainRow::chained_failed() const {
  if (changed > 0) return true;
  if (saturated) return false;
  if (chained <= simulated) return false;
  return !(chained <= chained_limit) || excess() > excess_limit();
}

double c_chain_of(DType storage) {
  return size_of(storage) <= 2 ? kLimits.chain_narrow : kLimits.chain_f32;
}

double chained_limit(DType storage, int64_t n, double reference, double floor) {
  return c_chain_of(storage) * kappa(n, 1) * std::max(reference, floor);
}

bool is_saturated(DType storage, double reference) {
  return size_of(storage) <= 2 && reference > kLimits.chain_saturated;
}

void forecast(std::vector<ChainRow>& rows) {
  for (ChainRow& row : rows) {
    if (row.before >= 0) {
      row.width = std::min(row.width, rows[static_cast<size_t>(row.before)].width);
    }
    if (row.is_state() || std::isnan(row.isolated)) continue;
    double inherited = 0;
    if (!std::isnan(row.amplification) && row.before >= 0) {
      inherited = row.amplification * rows[static_cast<size_t>(row.before)].forecast;
    } else if (row.reference > row.isolated_reference) {
      inherited = std::sqrt(row.reference * row.reference -
                            row.isolated_reference * row.isolated_reference);
    }
    row.forecast = std::hypot(inherited, row.isolated);
  }
}

void diagnose(std::vector<ChainRow>& rows) {
  for (ChainRow& row : rows) {
    const bool apart = row.chained_failed(), high = row.shadow_failed();
    if (row.isolated_failed) {
      const bool refuted = !std::isnan(row.shadow) && !high;
      row.diagnosis = refuted ? Diagnosis::golden : Diagnosis::kernel;
    } else if (row.saturated && row.changed == 0) {
      row.diagnosis = Diagnosis::saturated;
    } else if (high || row.changed > 0) {
      row.diagnosis = Diagnosis::wiring;
    } else {
      row.diagnosis = apart ? Diagnosis::inherited : Diagnosis::clean;
    }
  }
}

namespace {

template <class Condition>
int64_t first(const std::vector<ChainRow>& rows, Condition condition) {
  const auto found = std::find_if(rows.begin(), rows.end(), condition);
  return found == rows.end() ? -1 : found - rows.begin();
}

}  // namespace

int64_t first_divergence(const std::vector<ChainRow>& rows) {
  const int64_t alone = first(rows, [](const ChainRow& row) { return row.isolated_failed; });
  if (alone >= 0) return alone;
  return first(rows, [](const ChainRow& row) { return row.shadow_failed() || row.changed > 0; });
}

int64_t onset(const std::vector<ChainRow>& rows) {
  return first(rows, [](const ChainRow& row) { return row.chained_failed(); });
}

}  // namespace plumb::harness
