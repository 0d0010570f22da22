#include "harness/trace/recorded_bugs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/judge/limit_basis.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// A bug can only be distinguished from bad arithmetic where its values are some roundings away from
// the right ones, and where it takes half of the error away.
constexpr double kRoundings = 2, kTakesMost = 0.5;

// One output by flat positions of its tensor: what came, what is right, and what may be between.
struct Elements {
  std::vector<double> y, right, allowed;
};

Elements elements_of(const Evidence& output, const OutputVerdict& verdict) {
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

Likeness likeness_of(const Recording& recording, const Checkpoint& checkpoint,
                     const PlantedBug& bug, const Elements& elements, DType storage) {
  const Tensor at = recording.read(bug.at), values = recording.read(bug.values);
  Likeness out(storage);
  for (int64_t i = 0; i < at.numel(); ++i) {
    const int64_t flat = at.data<int64_t>()[i];
    if (flat < 0 || flat >= static_cast<int64_t>(elements.y.size())) {
      throw BadInput(text(checkpoint.params.where(), ": bugs: ", bug.name, ": position ", flat,
                          " is outside of output ", bug.output, " of ", elements.y.size(),
                          " elements; record it again"));
    }
    const auto k = static_cast<size_t>(flat);
    const double value = static_cast<double>(values.data<float>()[i]);
    out.add(value, elements.y[k], elements.right[k], elements.allowed[k]);
  }
  return out;
}

}  // namespace

Likeness::Likeness(DType storage) : rounding_(is_floating(storage) ? unit_roundoff(storage) : 0) {}

void Likeness::add(double bug, double y, double right, double allowed) {
  const double off = beyond(y, bug, allowed), whole = beyond(right, bug, allowed);
  nearest_ = std::max(nearest_, off);
  numbers_ = numbers_ || std::isfinite(bug);
  const bool near = std::fabs(right - bug) <= kRoundings * rounding_ * std::fabs(bug);
  tells_ = tells_ || (whole > 0 && !near);
  constexpr double kMost = 1e100;  // an infinite one is as far as they come
  left_ += std::min(off, kMost) * std::min(off, kMost);
  all_ += std::min(whole, kMost) * std::min(whole, kMost);
}

bool Likeness::told() const {
  return nearest_ <= 1 && tells_ && numbers_ && left_ <= kTakesMost * kTakesMost * all_;
}

KnownBugFound Likeness::named(const std::string& bug) const {
  return {bug, std::numeric_limits<double>::quiet_NaN(), nearest_, {}};
}

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
    const Evidence& output = cases[i].evidence;
    if (!output.has_expected_shape()) continue;
    std::optional<Elements> elements;
    for (const PlantedBug& bug : checkpoint.bugs) {
      if (bug.output != output.name) continue;
      if (!elements) elements = elements_of(output, verdicts[i]);
      const Likeness found = likeness_of(recording, checkpoint, bug, *elements, output.y.dtype());
      if (!found.told() || (best && found.share() >= least)) continue;
      least = found.share();
      best = found.named(bug.name);
    }
  }
  return best;
}

}  // namespace plumb::harness
