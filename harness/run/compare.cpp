#include "harness/run/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "harness/judge/sums.h"
#include "harness/recording/layout.h"
#include "harness/recording/sampled.h"
#include "harness/referee/cases.h"
#include "harness/referee/oracle_runs.h"
#include "harness/run/outcome.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// What two devices made of one output, and what its errors are measured in.
struct Couple {
  const OutputVerdict &a, &b;
  const Tensor y_a, y_b;
  const Evidence& recorded;
  const std::vector<int64_t> chosen;  // the tokens that these are, or empty: all
};

bool has_gate(const OutputVerdict& verdict, std::string_view name) {
  return std::any_of(verdict.gates.begin(), verdict.gates.end(),
                     [&](const Gate& gate) { return gate.name == name; });
}

bool passes_gate(const OutputVerdict& verdict, std::string_view name) {
  return std::none_of(verdict.gates.begin(), verdict.gates.end(),
                      [&](const Gate& gate) { return gate.name == name && !gate.passed; });
}

std::vector<double> oracle_values(const Evidence& recorded, const Layout& layout) {
  std::vector<double> o = to_matrix(recorded.reference, layout);
  if (recorded.delta.defined()) add_delta(o, recorded.delta, layout);
  return o;
}

// Of each gate the one with the larger limit; the statistics are the same.
std::vector<Gate> wider(std::vector<Gate> a, const std::vector<Gate>& b) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (b[i].limit > a[i].limit) a[i] = b[i];
  }
  return a.empty() ? b : a;
}

// How far two devices are apart where both have numbers.
std::vector<Gate> distance_gates(const Couple& c, const Layout& layout,
                                 const std::vector<double>& a, const std::vector<double>& b) {
  const bool gates_a = has_gate(c.a, "tensor"), gates_b = has_gate(c.b, "tensor");
  const DType storage = gates_a ? c.y_a.dtype() : c.y_b.dtype();
  const ReferenceScales scales =
      reference_scales(layout, oracle_values(c.recorded, layout),
                       to_mask(c.recorded.valid, c.recorded.valid_axes, layout), storage);
  std::vector<double> moved = scales.o;  // an error of a - b against the oracle
  std::vector<uint8_t> skipped(moved.size());
  double largest = 0;
  for (size_t i = 0; i < moved.size(); ++i) {
    skipped[i] = !std::isfinite(a[i]) || !std::isfinite(b[i]);
    if (skipped[i] || !scales.usable[i]) continue;
    moved[i] += a[i] - b[i];
    largest = std::max(largest, std::fabs(a[i] - b[i]));
  }
  if (!gates_a && !gates_b) {  // both in float64
    return {make_gate("float64 agreement",
                      quotient(largest, kLimits.float64_relative * scales.max_abs), 1)};
  }
  const Statistics difference = statistics(moved, scales, skipped);
  const auto limited_by = [&](bool has, const OutputVerdict& v) {
    return has ? statistic_gates(difference, v.reference, scales, v.floors) : std::vector<Gate>();
  };
  return wider(limited_by(gates_a, c.a), limited_by(gates_b, c.b));
}

// Exact blocks; the float64 oracle's value counts as what it rounds to in the other's dtype.
Gate bits_gate(const Couple& c, const std::vector<double>& a, const std::vector<double>& b) {
  const bool narrow_a = size_of(c.y_a.dtype()) <= size_of(c.y_b.dtype());
  const DType dtype = narrow_a ? c.y_a.dtype() : c.y_b.dtype();
  const auto value = [&](double x) { return is_floating(dtype) ? round_to(dtype, x) : x; };
  double different = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = value(a[i]), y = value(b[i]);
    different += !(x == y || (std::isnan(x) && std::isnan(y)));
  }
  return make_gate("bits", different, 0);
}

std::vector<Gate> pair_gates(const Couple& c, Pair& pair) {
  const Layout layout = layout_of(c.y_a.shape(), c.recorded.axes, c.chosen);
  const std::vector<double> a = to_matrix(c.y_a, layout), b = to_matrix(c.y_b, layout);
  const int64_t size = size_of(c.y_a.dtype());
  pair.elements += c.y_a.numel();
  double classes = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    classes += class_of(a[i]) != class_of(b[i]);
    const int64_t at = static_cast<int64_t>(i) * size;
    pair.equal_bits += c.y_a.dtype() == c.y_b.dtype() &&
                       std::memcmp(c.y_a.data<char>() + at, c.y_b.data<char>() + at,
                                   static_cast<size_t>(size)) == 0;
  }
  if (has_gate(c.a, "bits") || has_gate(c.b, "bits")) return {bits_gate(c, a, b)};
  std::vector<Gate> out = distance_gates(c, layout, a, b);
  // At the edge of the range the rules allow two classes; two devices then may differ.
  if (!passes_gate(c.a, "classes") || !passes_gate(c.b, "classes")) {
    out.push_back(make_gate("classes", classes, 0));
  }
  return out;
}

Pair compare_two(const Recording& recording, const Checkpoint& checkpoint,
                 const std::vector<Replayed>& all, size_t a, size_t b) {
  Pair out;
  out.a = a;
  out.b = b;
  out.agree = true;
  const CheckpointResult &of_a = all[a].result, &of_b = all[b].result;
  out.same_contract = of_a.contract == of_b.contract;
  bool first = true;
  for (size_t i = 0; i < std::min(of_a.outputs.size(), of_b.outputs.size()); ++i) {
    const std::string& name = of_a.outputs[i].name;
    const Evidence recorded = recorded_case(recording, checkpoint, name).evidence;
    // Of a sampled output the recording knows chosen rows: those are compared.
    std::vector<int64_t> chosen;
    if (checkpoint.outputs.at(name).sampled) chosen = chosen_tokens(recording, checkpoint, name);
    const auto rows_of = [&](const Replayed& replayed) {
      const Tensor& y = replayed.outputs.at(name);
      return chosen.empty() ? y : take_rows(y, token_axis(recorded.axes), chosen);
    };
    const Couple couple{of_a.outputs[i], of_b.outputs[i], rows_of(all[a]),
                        rows_of(all[b]), recorded,        chosen};
    for (const Gate& gate : pair_gates(couple, out)) {
      out.agree = out.agree && gate.passed;
      if (!first && ratio(gate) <= ratio(out.worst)) continue;
      out.worst = gate;
      out.output = name;
      first = false;
    }
  }
  return out;
}

bool came_to_a_result(const Replayed& replayed) {
  const Status s = replayed.result.status;
  const bool judged =
      s == Status::pass || s == Status::fail || s == Status::blind || s == Status::nondeterministic;
  return judged && !replayed.outputs.empty();
}

// Sets of devices, in words and in numbers.
class Sides {
 public:
  explicit Sides(Comparison& comparison) : c_(comparison) {
    for (size_t i = 0; i < c_.results.size(); ++i) {
      const bool compared = std::any_of(c_.pairs.begin(), c_.pairs.end(), [&](const Pair& pair) {
        return pair.a == i || pair.b == i;
      });
      if (!compared) continue;
      all_.push_back(i);
      const Status status = c_.results[i].status;
      const bool wrong = status == Status::fail || status == Status::nondeterministic;
      (wrong ? wrong_ : right_).push_back(i);
    }
  }

  void find() {
    const bool all_agree =
        std::all_of(c_.pairs.begin(), c_.pairs.end(), [](const Pair& pair) { return pair.agree; });
    const std::vector<size_t> alone = alone_among_the_others();
    if (all_.size() < 2) return;
    if (all_agree && wrong_.empty()) {
      say(Finding::agree, {}, "all agree");
    } else if (all_agree && right_.empty()) {
      say(Finding::suspect, all_,
          names(all_) +
              " agree with each other and not with the recording: look at the "
              "recording, or at what they share");
    } else if (alone.size() == 1 && right_ == alone) {
      const std::vector<size_t> others = without(alone[0]);
      say(Finding::split, others,
          text("only ", names(alone), " agrees with the recording; ", names(others),
               " agree with each other: look at what these share"));
    } else if (alone.size() == 1) {
      say(Finding::alone, alone,
          text(names(alone), " differs from ", names(without(alone[0])), ", which agree: look at ",
               names(alone)));
    } else if (wrong_.size() == 1) {
      say(Finding::alone, wrong_,
          text(names(wrong_), " differs from the recording, with which ", names(right_),
               right_.size() == 1 ? " agrees" : " agree", ": look at ", names(wrong_)));
    } else if (wrong_.empty()) {
      say(Finding::split, all_,
          names(all_) + " differ by more than the limits of either, each within its own");
    } else {
      say(Finding::split, wrong_,
          text(names(wrong_), " differ from the recording", right_.empty() ? "" : ", not ",
               names(right_), ": look at ", names(wrong_)));
    }
  }

 private:
  // The devices that differ from each of the others, where these agree and are at least two.
  std::vector<size_t> alone_among_the_others() const {
    std::vector<size_t> out;
    for (const size_t i : all_) {
      const bool is_alone = std::all_of(c_.pairs.begin(), c_.pairs.end(), [&](const Pair& pair) {
        return pair.agree != (pair.a == i || pair.b == i);
      });
      if (is_alone && all_.size() > 2) out.push_back(i);
    }
    return out;
  }
  std::vector<size_t> without(size_t device) const {
    std::vector<size_t> out = all_;
    std::erase(out, device);
    return out;
  }
  std::string names(const std::vector<size_t>& devices) const {
    std::string out;
    for (size_t i = 0; i < devices.size(); ++i) {
      out += (i == 0                    ? ""
              : i + 1 == devices.size() ? " and "
                                        : ", ") +
             c_.results[devices[i]].device;
    }
    return out;
  }
  void say(Finding finding, std::vector<size_t> look_at, std::string words) {
    c_.finding = finding;
    c_.look_at = std::move(look_at);
    c_.words = std::move(words);
  }

  Comparison& c_;
  std::vector<size_t> all_, wrong_, right_;
};

}  // namespace

std::string_view name_of(Finding finding) {
  constexpr std::string_view kNames[] = {"agree", "alone", "suspect", "split", "not compared"};
  return kNames[static_cast<size_t>(finding)];
}

Comparison compare(const Recording& recording, const Checkpoint& checkpoint,
                   std::vector<Replayed> replayed) {
  Comparison out;
  for (size_t a = 0; a < replayed.size(); ++a) {
    for (size_t b = a + 1; b < replayed.size(); ++b) {
      if (!came_to_a_result(replayed[a]) || !came_to_a_result(replayed[b])) continue;
      out.pairs.push_back(compare_two(recording, checkpoint, replayed, a, b));
    }
  }
  for (Replayed& one : replayed) out.results.push_back(std::move(one.result));
  out.words = "fewer than two devices came to a result";
  Sides(out).find();
  return out;
}

}  // namespace plumb::harness
