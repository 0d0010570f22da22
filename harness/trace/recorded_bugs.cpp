#include "harness/trace/recorded_bugs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/judge/limit_basis.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// A bug can only be told from bad arithmetic where its values are some roundings away from the
// right ones, and where it takes half of the error away.
constexpr double kRoundings = 2, kTakesMost = 0.5;

// One output by flat positions of its tensor: what came, what is right, and what may be between.
struct Elements {
  std::vector<double> y, right, allowed;
};

Elements elements_of(const OutputCase& output, const OutputVerdict& verdict) {
  const CaseArrays a = load_arrays(output);
  const ReferenceScales scales = reference_scales(a.layout, a.o, a.valid, output.y.dtype());
  double limit = 0;  // whole numbers are equal or not
  for (const Gate& gate : verdict.gates) {
    if (gate.name == "element") limit = gate.limit;
  }
  Elements out{a.y, a.o, a.y};
  const std::vector<int64_t> flat = flat_positions(a.layout);
  for (size_t i = 0; i < flat.size(); ++i) {
    const auto at = static_cast<size_t>(flat[i]);
    const auto position = static_cast<int64_t>(i);
    out.y[at] = a.y[i];
    out.right[at] = a.o[i];
    out.allowed[at] = limit * scales.element_scale(position / a.layout.columns, position);
  }
  return out;
}

// A distance over what is allowed: 0 between values that are the same, also two NaNs.
double beyond(double a, double b, double allowed) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double distance = std::fabs(a - b) / allowed;
  return std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance;
}

struct Likeness {
  double nearest = 0;        // the largest of |y - bug| / allowed
  bool tells = false;        // some |right - bug| is more than roundings
  double left = 0, all = 0;  // sums of both squared
  bool numbers = false;      // the bug gives some: anything can be NaN everywhere
  bool told() const {
    return nearest <= 1 && tells && numbers && left <= kTakesMost * kTakesMost * all;
  }
};

Likeness likeness(const Recording& recording, const Checkpoint& checkpoint, const PlantedBug& bug,
                  const Elements& elements, DType storage) {
  const Tensor at = recording.read(bug.at), values = recording.read(bug.values);
  const double rounding = is_floating(storage) ? unit_roundoff(storage) : 0;
  Likeness out;
  for (int64_t i = 0; i < at.numel(); ++i) {
    const int64_t flat = at.data<int64_t>()[i];
    if (flat < 0 || flat >= static_cast<int64_t>(elements.y.size())) {
      throw BadInput(text(checkpoint.params.where(), ": bugs: ", bug.name, ": position ", flat,
                          " lies outside of output ", bug.output, " of ", elements.y.size(),
                          " elements; record it again"));
    }
    const auto k = static_cast<size_t>(flat);
    const double value = static_cast<double>(values.data<float>()[i]);
    const double off = beyond(elements.y[k], value, elements.allowed[k]);
    const double whole = beyond(elements.right[k], value, elements.allowed[k]);
    out.nearest = std::max(out.nearest, off);
    out.numbers = out.numbers || std::isfinite(value);
    const bool near =
        std::fabs(elements.right[k] - value) <= kRoundings * rounding * std::fabs(value);
    out.tells = out.tells || (whole > 0 && !near);
    constexpr double kMost = 1e100;  // an infinite one is as far as they come
    out.left += std::min(off, kMost) * std::min(off, kMost);
    out.all += std::min(whole, kMost) * std::min(whole, kMost);
  }
  return out;
}

}  // namespace

std::vector<Margin> recorded_margins(const Checkpoint& checkpoint) {
  std::vector<Margin> out;
  for (const PlantedBug& bug : checkpoint.bugs) out.push_back({bug.name, bug.margin});
  return out;
}

std::optional<KnownBugFound> recorded_bug(const Recording& recording, const Checkpoint& checkpoint,
                                          const std::vector<OutputCase>& cases,
                                          const std::vector<OutputVerdict>& verdicts) {
  std::optional<KnownBugFound> best;
  double least = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    if (!cases[i].has_expected_shape()) continue;
    std::optional<Elements> elements;
    for (const PlantedBug& bug : checkpoint.bugs) {
      if (bug.output != cases[i].name) continue;
      if (!elements) elements = elements_of(cases[i], verdicts[i]);
      const Likeness found = likeness(recording, checkpoint, bug, *elements, cases[i].y.dtype());
      const double share = found.all > 0 ? found.left / found.all : 1;
      if (!found.told() || (best && share >= least)) continue;
      least = share;
      best = {bug.name, std::numeric_limits<double>::quiet_NaN(), found.nearest, {}};
    }
  }
  return best;
}

}  // namespace plumb::harness
