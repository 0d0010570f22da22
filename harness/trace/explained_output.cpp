#include "harness/trace/explained_output.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "harness/judge/mismatch.h"
#include "harness/judge/verdict_text.h"
#include "harness/trace/described_output.h"
#include "harness/trace/recorded_bugs.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

std::vector<double> numbers(JsonValue list) {
  std::vector<double> out;
  for (const JsonValue item : list.items()) out.push_back(item.number_or_name());
  return out;
}

// Exactly so many.
std::vector<double> numbers(JsonValue list, size_t count) {
  std::vector<double> out = numbers(list);
  if (out.size() != count) list.fail("has ", out.size(), " values, expected ", count);
  return out;
}

// That of the gate, or, where numbers are not asked for, of any way to round.
double element_limit(const OutputLimits& limits, const std::vector<Gate>& gates) {
  const auto found = std::find_if(gates.begin(), gates.end(),
                                  [](const Gate& gate) { return gate.name == "element"; });
  return found == gates.end() ? limits.element_limit() : found->limit;
}

// Of 16 bits, where they differ.
void take_places(MeasuredOutput& y, JsonValue places) {
  size_t at = 0;
  for (const JsonValue of : places.items()) {
    if (at == y.bits.size()) places.fail("has more entries than there are ways to round");
    const std::vector<double> found = numbers(of, 2);
    y.bits[at].found.first = static_cast<int64_t>(found[0]);
    y.bits[at++].parts.distance_at = static_cast<int64_t>(found[1]);
  }
}

std::optional<LargestDifference> largest(JsonValue of) {
  if (of.is_null()) return {};
  const std::vector<double> found = numbers(of, 2);
  return LargestDifference{found[0], static_cast<int64_t>(found[1])};
}

std::string mismatch_of(const KnownOutput& known, double limit, JsonValue details) {
  Mismatch found;
  found.differ = details.at("differ").integer(0);
  found.n = known.valid;
  found.limited = limit > 0;
  found.absolute = largest(details.at("absolute"));
  found.relative = largest(details.at("relative"));
  return words_of(found, known.scales.layout);
}

std::string region(const KnownOutput& known, std::span<const double> along) {
  const Layout& layout = known.scales.layout;
  std::vector<std::vector<double>> axes;
  size_t at = 0;
  for (int axis = 0; axis < layout.shape.rank(); ++axis) {
    const auto size = static_cast<size_t>(layout.shape[axis]);
    require(at + size <= along.size(), "limits", "energy along axes ends ",
            at + size - along.size(), " numbers too early");
    axes.emplace_back(along.begin() + static_cast<std::ptrdiff_t>(at),
                      along.begin() + static_cast<std::ptrdiff_t>(at + size));
    at += size;
  }
  return region_of(axes, layout);
}

std::optional<KnownBugFound> bug_of(double limit, DType storage, JsonValue bugs) {
  std::optional<KnownBugFound> best;
  double least = 0;
  for (const JsonValue bug : bugs.items()) {
    Likeness found(storage);
    std::string name;
    for (const JsonValue part : bug.items()) {
      if (name.empty()) {
        name = part.string();
        continue;
      }
      const std::vector<double> place = numbers(part, 4);
      found.add(place[0], place[1], place[2], limit * place[3]);
    }
    if (!found.told() || (best && found.share() >= least)) continue;
    least = found.share();
    best = found.named(name);
  }
  return best;
}

}  // namespace

ExplainedOutput explained_output(OutputLimits& limits, std::span<const double> record,
                                 JsonValue details, std::span<const double> along) {
  if (const JsonValue labels = details.at("labels"); !labels.is_null()) {
    std::vector<std::string> names;
    for (const JsonValue label : labels.items()) names.emplace_back(label.string());
    limits.call_axes(std::move(names));
  }
  const KnownOutput& known = limits.known();
  MeasuredOutput y = read_record(known, record);
  take_places(y, details.at("places"));
  JudgedOutput judged = limits.judged(y);
  ExplainedOutput out{std::move(judged.verdict), 0, {}, {}};
  OutputVerdict& v = out.verdict;
  v.name = details.at("name").string();
  out.element_limit = element_limit(limits, v.gates);
  const bool passed =
      std::all_of(v.gates.begin(), v.gates.end(), [](const Gate& gate) { return gate.passed; });
  v.status = passed ? Status::pass : Status::fail;
  if (!is_gross(v)) out.bits = judged.bits;
  if (passed || along.empty()) return out;
  WrongClass first;
  if (const JsonValue wrong = details.at("wrong"); !wrong.is_null()) {
    const std::vector<double> at = numbers(wrong, 3);
    v.classes.wrong = static_cast<int64_t>(v.gates.front().statistic);
    v.classes.first_wrong = static_cast<int64_t>(at[0]);
    v.gates.front().where = element_name(known.scales.layout, v.classes.first_wrong);
    first = {at[1], at[2]};
  }
  v.where = Localisation{region(known, along), 0, worst_of(v.gates), {}};
  v.reason = failure_text(v, first, is_nameless(known.scales.layout));
  v.mismatch = mismatch_of(known, out.element_limit, details);
  out.known_bug = bug_of(out.element_limit, known.scales.storage, details.at("bugs"));
  return out;
}

}  // namespace plumb::harness
