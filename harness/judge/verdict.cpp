#include "harness/judge/verdict.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/judge/conformance_gates.h"
#include "harness/judge/details.h"
#include "harness/judge/distribution.h"
#include "harness/judge/float64_agreement.h"
#include "harness/judge/ill_conditioned.h"
#include "harness/judge/limit_basis.h"
#include "harness/judge/mismatch.h"
#include "harness/judge/sample_gates.h"
#include "harness/judge/sums.h"
#include "harness/judge/verdict_text.h"
#include "harness/recording/layout.h"
#include "harness/recording/reference_error.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

enum class HeldTo { bits, float64, gates };

HeldTo held_to(const Evidence& e, const Rule& rule) {
  const bool f64 = e.y.dtype() == DType::f64;
  if (!is_floating(e.y.dtype()) || (rule.exact && !(f64 && e.delta.defined()))) {
    return HeldTo::bits;
  }
  return f64 ? HeldTo::float64 : HeldTo::gates;
}

// "" when y has the shape and dtype that the reference and contract promise.
std::string structure_fault(const Evidence& e, const Contract& contract) {
  const Tensor& like = e.expected();
  if (!e.y.defined()) return "there is no output";
  const bool floating = is_floating(like.dtype());
  const DType expected = floating ? contract.storage : like.dtype();
  const bool dtype_fits = e.y.dtype() == expected || (floating && e.y.dtype() == DType::f64);
  if (dtype_fits && e.has_expected_shape()) return {};
  return text("output is ", name_of(e.y.dtype()), ' ', e.y.shape(), ", expected ",
              name_of(expected), ' ', like.shape());
}

void check_case(const Evidence& e, const Rule& rule) {
  const char* name = e.name.c_str();
  require(e.reference.defined() || e.oracle.defined(), "judge", "output ", name,
          " has neither a reference nor an oracle");
  require(e.reference.defined() || e.model.defined() || rule.exact, "judge", "output ", name,
          " has no reference and no model");
}

// The first position in [0, n) that is as wanted; -1: none.
template <class Wanted>
int64_t first_of(size_t n, const Wanted& wanted) {
  const auto in_part = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      if (wanted(i)) return static_cast<int64_t>(i);
    }
    return int64_t{-1};
  };
  for (const int64_t at : shared_parts(n, in_part)) {
    if (at >= 0) return at;
  }
  return -1;
}

// Position of a valid element whose oracle is not finite although the reference is; -1: none.
int64_t contradiction(const CaseArrays& a) {
  return first_of(a.r.size(), [&](size_t i) {
    return a.valid[i] && !std::isfinite(a.o[i]) && std::isfinite(a.r[i]);
  });
}

std::vector<double> rounded(const std::vector<double>& o, DType storage) {
  std::vector<double> out = shared_zeros<double>(o.size());
  shared_loop(o.size(), [&](size_t begin, size_t end) {
    round_all(storage, o.data() + begin, end - begin, out.data() + begin);
  });
  return out;
}

// What y's classes are held to: one of the arrays, or what is made of them in `made`.
const std::vector<double>& class_reference(const Evidence& e, const CaseArrays& a,
                                           const std::vector<double>& o, HeldTo held,
                                           std::vector<double>& made) {
  if (held == HeldTo::gates) return a.r.empty() ? a.model : a.r;
  made = held == HeldTo::bits ? rounded(o, e.y.dtype()) : o;
  for (size_t i = 0; i < a.delta.size() && held == HeldTo::float64 && !e.oracle.defined(); ++i) {
    if (std::isnan(made[i]) && std::isinf(a.delta[i])) made[i] = 0;  // r overflowed, o was finite
  }
  return made;
}

std::string place(const Layout& layout, int64_t position) {
  return position < 0 ? "" : element_name(layout, position);
}

void class_gates(OutputVerdict& v, const Layout& layout) {
  v.gates.push_back(make_gate("classes", static_cast<double>(v.classes.wrong), 0, {},
                              place(layout, v.classes.first_wrong)));
  v.gates.push_back(make_gate("padding", static_cast<double>(v.classes.padded_wrong), 0, {},
                              place(layout, v.classes.first_padded_wrong)));
}

// 1 where y differs from `other` at a valid element; -0 equals +0 and NaN equals NaN.
std::vector<double> differing(const CaseArrays& a, const std::vector<double>& other) {
  std::vector<double> out(a.y.size(), 0);
  for (size_t i = 0; i < out.size(); ++i) {
    const bool same = a.y[i] == other[i] || (std::isnan(a.y[i]) && std::isnan(other[i]));
    out[i] = a.valid[i] && !same;
  }
  return out;
}

Gate bits_gate(const CaseArrays& a, const std::vector<double>& expected) {
  const auto differs = [&](size_t i) {
    return a.valid[i] && a.y[i] != expected[i] && !(std::isnan(a.y[i]) && std::isnan(expected[i]));
  };
  const int64_t at = first_of(a.y.size(), differs);
  double count = 0;
  for (size_t i = 0; at >= 0 && i < a.y.size(); ++i) count += differs(i);
  const int64_t n = std::count(a.valid.begin(), a.valid.end(), 1);
  return make_gate("bits", count, 0, {{"n", static_cast<double>(n)}}, place(a.layout, at));
}

Gate float64_gate(const CaseArrays& a, const ReferenceScales& scales,
                  const std::vector<uint8_t>& skipped) {
  std::vector<uint8_t> compared = scales.usable;
  for (size_t i = 0; i < compared.size(); ++i) compared[i] = compared[i] && !skipped[i];
  const Float64Agreement found =
      float64_agreement(a.y, scales.o, a.delta, compared, scales.max_abs);
  return make_gate("float64 agreement", found.share, 1,
                   {{"relative", kLimits.float64_relative},
                    {"max_abs", scales.max_abs},
                    {"delta", kLimits.float64_delta}},
                   place(a.layout, found.at));
}

// The reference's error as recordings state it: of all valid rows, in units of o itself.
double stated_error(const Evidence& e, const CaseArrays& a, const ReferenceScales& scales,
                    double tensor) {
  if (!e.ill_conditioned.defined()) {
    const bool usual = scales.size_o2 == scales.sum_o2;
    return usual ? tensor : tensor_error(a.r, scales, not_finite(a.r));
  }
  std::vector<double> delta = scales.o;
  for (size_t i = 0; i < delta.size(); ++i) {
    delta[i] = std::isfinite(delta[i]) ? delta[i] - a.r[i] : 0;
  }
  return reference_error(a.r, delta, to_mask(e.valid, e.valid_axes, a.layout));
}

// False where a row may be ill conditioned and that is not known yet: then nothing is judged.
bool statistics_gates(OutputVerdict& v, const OutputCase& c, const CaseArrays& a,
                      const ReferenceScales& scales, const std::vector<uint8_t>& skipped,
                      bool known) {
  const KnownFigures figures = known_figures(c.evidence, a, scales);
  const GainScales gains(scales);
  LimitBasis basis(c.rule, c.allowance, figures, scales, gains, v.floors);
  if (!known && basis.may_have_ill_rows()) return false;
  const Figures of_y{v.statistics, column_errors(a.y, scales, skipped)};
  for (Gate& gate : basis.gates(of_y)) v.gates.push_back(std::move(gate));
  if (c.evidence.ill_conditioned.defined()) {
    v.gates.push_back(set_aside_gate(c.evidence, a, scales.o));
  }
  if (basis.recorded())
    v.recorded_error = stated_error(c.evidence, a, scales, basis.recorded()->tensor);
  v.reference = basis.reference();
  v.golden_suspect = basis.suspicion();
  if (const double error = c.allowance.unstable; v.golden_suspect.empty() && error > 0) {
    v.golden_suspect = text("golden suspect: two runs of the reference differ by ", error);
  }
  v.ill_conditioned = basis.ill_conditioned();
  v.floors = basis.floors();
  conformance_gates(v, c, a);
  return true;
}

double token_error(const Statistics& statistics) {
  for (const GroupStatistic& family : statistics.families) {
    if (family.family == "token") return family.value;
  }
  return statistics.tensor;
}

// What all rows of a sampled output are held to.
SampleRule sample_rule(const OutputVerdict& v, const OutputCase& c, const ReferenceScales& scales,
                       HeldTo held) {
  using Kind = SampleRule::Kind;
  SampleRule out;
  out.kind = held == HeldTo::bits      ? Kind::reference
             : held == HeldTo::float64 ? Kind::oracle
                                       : Kind::error;
  out.storage = scales.storage;
  out.floor = v.floors.norm;
  out.roundings = v.floors.roundings;
  out.max_abs = scales.max_abs;
  if (c.rule.held_to_model || !v.golden_suspect.empty()) out.token_error = token_error(v.reference);
  out.beside_reference = !c.rule.rounding.empty() && v.golden_suspect.empty();
  out.gain = std::fabs(v.reference.gain);
  out.spread = recorded_spread(c.allowance, c.rule, c.evidence.y.dtype());
  return out;
}

bool failed(const OutputVerdict& v, std::string_view gate) {
  return std::any_of(v.gates.begin(), v.gates.end(),
                     [&](const Gate& g) { return g.name == gate && !g.passed; });
}

// What to draw on the map of a failure: wrong classes, differing bits, or error beyond the noise.
std::vector<double> error_energy(const OutputVerdict& v, const CaseArrays& a,
                                 const ReferenceScales& scales,
                                 const std::vector<ClassOutcome>& outcomes) {
  if (failed(v, "classes")) {
    std::vector<double> out(outcomes.size());
    for (size_t i = 0; i < out.size(); ++i) out[i] = outcomes[i] == ClassOutcome::wrong;
    return out;
  }
  if (failed(v, "padding")) {
    std::vector<double> out(a.y.size());
    for (size_t i = 0; i < out.size(); ++i) out[i] = !a.valid[i] && !std::isfinite(a.y[i]);
    return out;
  }
  if (failed(v, "bits")) return differing(a, rounded(scales.o, scales.storage));
  const auto others = std::count_if(v.gates.begin(), v.gates.end(), [](const Gate& g) {
    return !g.passed && g.name != "conformance" && g.name != "ulp" && g.name != "channel bits";
  });
  if (others == 0) return differing(a, a.model);
  const double noise = std::max(v.reference.tensor, v.floors.norm);
  return excess_energy(a.y, scales,
                       scales.storage == DType::f64 ? kLimits.float64_relative : noise);
}

// Why a right output proves nothing; "" if it does.
std::string blind_reason(const CaseArrays& a, const std::vector<double>& o) {
  int64_t count = 0;
  double first = 0;
  for (size_t i = 0; i < o.size(); ++i) {
    if (!a.valid[i]) continue;
    if (count++ == 0) first = o[i];
    if (o[i] != first && !(std::isnan(o[i]) && std::isnan(first))) return {};
  }
  if (o.empty()) return "the output is empty";
  if (count == 0) return "no element of the output is valid";
  if (first == 0) return "every element of the output is zero";
  return count == 1 ? "" : text("every element of the output is ", first);
}

// What a kernel does that has zeros where the result is a denormal number, in words.
std::string words_of_flushing(const CaseArrays& a, const ReferenceScales& scales) {
  const double normal = scales.smallest_normal;
  const double rounds_to_zero = normal * unit_roundoff(scales.storage);
  int64_t denormals = 0, normals = 0;
  for (size_t i = 0; i < a.y.size(); ++i) {
    const double size = std::fabs(scales.o[i]);
    if (!scales.usable[i] || size <= rounds_to_zero) continue;
    if (size < normal && a.y[i] != 0) return {};
    denormals += size < normal;
    normals += size >= normal && a.y[i] != 0;
  }
  if (denormals == 0 || normals == 0) return {};
  return text("; it flushes denormals to zero: y is 0 in all ", denormals,
              " places where the result is smaller than ", normal);
}

// Gates that no rounding error explains.
constexpr std::string_view kStructural[] = {"structure",     "classes",     "padding",
                                            "float64 block", "rows finite", "rows set aside"};

// Whether correct kernels agree on nothing of the output; says what is set aside where they do not
// agree on some of it.
bool nothing_decidable(OutputVerdict& v, const Evidence& e, const CaseArrays& a,
                       const ReferenceScales& scales) {
  if (!v.ill_conditioned.empty()) return true;
  if (scales.storage != DType::f64) v.ill_conditioned = words_of_ill_rows(e, a);
  return !v.ill_conditioned.empty() && scales.n == 0;
}

WrongClass first_wrong(const OutputVerdict& v, const std::vector<double>& y,
                       const std::vector<double>& expected) {
  if (v.classes.first_wrong < 0) return {};
  const auto at = static_cast<size_t>(v.classes.first_wrong);
  return {y[at], expected[at]};
}

void settle(OutputVerdict& v, const CaseArrays& a, const ReferenceScales& scales,
            const std::vector<ClassOutcome>& outcomes, const std::vector<double>& expected,
            bool decidable) {
  const bool passed =
      std::all_of(v.gates.begin(), v.gates.end(), [](const Gate& gate) { return gate.passed; });
  const auto by_errors = [](const Gate& gate) {
    return gate.passed || std::none_of(std::begin(kStructural), std::end(kStructural),
                                       [&](std::string_view name) { return gate.name == name; });
  };
  if (!decidable && std::all_of(v.gates.begin(), v.gates.end(), by_errors)) {
    v.status = Status::blind;
    v.reason = v.ill_conditioned;
    return;
  }
  if (!passed) {
    v.status = Status::fail;
    v.where = localise(error_energy(v, a, scales, outcomes), a.layout, v.gates);
    v.reason = failure_text(v, first_wrong(v, a.y, expected), is_nameless(a.layout));
    v.mismatch = mismatch_text(a.y, scales, a.valid, v.gates);
    return;
  }
  v.reason = blind_reason(a, scales.o);
  v.status = v.reason.empty() ? Status::pass : Status::blind;
}

}  // namespace

namespace {

OutputVerdict judge(const OutputCase& c, bool known) {
  const Evidence& e = c.evidence;
  const Rule& rule = c.rule;
  OutputVerdict v;
  v.name = e.name;
  v.reason = structure_fault(e, rule.contract);
  v.gates.push_back(make_gate("structure", v.reason.empty() ? 0 : 1, 0));
  if (!v.reason.empty()) return v;

  CaseArrays a = load_arrays(e);
  const HeldTo held = held_to(e, rule);
  if (const int64_t at = contradiction(a); at >= 0) {
    v.status = Status::bad_input;
    v.reason = text("the oracle is ", a.o[static_cast<size_t>(at)], " where the reference is ",
                    a.r[static_cast<size_t>(at)], ", at ", place(a.layout, at));
    return v;
  }
  const ReferenceScales scales = reference_scales(a.layout, std::move(a.o), a.valid, e.y.dtype());
  std::vector<double> made;
  const std::vector<double>& expected = class_reference(e, a, scales.o, held, made);
  v.classes = check_classes(a.y, expected, scales.o, a.valid, e.y.dtype());
  const std::vector<ClassOutcome> outcomes = std::move(v.classes.outcomes);
  std::vector<uint8_t> skipped = shared_zeros<uint8_t>(outcomes.size());
  shared_loop(skipped.size(), [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) skipped[i] = outcomes[i] == ClassOutcome::skip;
  });
  class_gates(v, a.layout);

  v.floors = floors(rule.contract, rule.stages, rule.max_abs_score);
  v.rounding = rule.rounding;
  if (e.float64_share) {
    // Within its limit it is the rounding of what is recorded, no figure of the device.
    const double beyond = *e.float64_share <= 1 ? 0 : *e.float64_share;
    v.gates.push_back(
        make_gate("float64 block", beyond, 1, {{"share", *e.float64_share}}, e.float64_at));
  }
  FamilyErrors errors;
  v.statistics = statistics(a.y, scales, skipped, &errors);
  v.details = details(a.y, scales, skipped, errors);
  if (!a.r.empty() && held != HeldTo::gates) {
    v.recorded_error = tensor_error(a.r, scales, not_finite(a.r));
  }
  switch (held) {
    case HeldTo::bits: v.gates.push_back(bits_gate(a, expected)); break;
    case HeldTo::float64: v.gates.push_back(float64_gate(a, scales, skipped)); break;
    case HeldTo::gates:
      if (!statistics_gates(v, c, a, scales, skipped, known)) {
        return judge(without_ill_rows(c, a, scales).value_or(c), true);
      }
      break;
  }
  const size_t chosen = v.gates.size();
  if (e.sample) {
    for (Gate& gate : sample_gates(*e.sample, a.layout, sample_rule(v, c, scales, held))) {
      v.gates.push_back(std::move(gate));
    }
  }
  settle(v, a, scales, outcomes, expected, !nothing_decidable(v, e, a, scales));
  if (v.status == Status::pass && most_is_set_aside(e, a)) {
    v.status = Status::blind;
    v.reason = v.ill_conditioned;
  }
  const bool elsewhere =
      std::all_of(v.gates.begin(), v.gates.begin() + static_cast<std::ptrdiff_t>(chosen),
                  [](const Gate& gate) { return gate.passed; });
  if (v.status == Status::fail && elsewhere) {
    v.where = localise_rows(*e.sample, a.layout, sample_rule(v, c, scales, held), v.gates);
    v.reason = failure_text(v, first_wrong(v, a.y, expected), is_nameless(a.layout));
  }
  if (v.status == Status::fail && held == HeldTo::gates) v.reason += words_of_flushing(a, scales);
  return v;
}

}  // namespace

OutputVerdict judge(const OutputCase& c) {
  check_case(c.evidence, c.rule);
  return judge(c, c.evidence.ill_conditioned.defined());
}

bool is_gross(const OutputVerdict& verdict) {
  constexpr double kTimes = 8;  // the limit, which is twice a right kernel's error
  return std::any_of(verdict.gates.begin(), verdict.gates.end(), [](const Gate& gate) {
    constexpr std::string_view kCounts[] = {"bits", "conformance", "channel bits"};
    const auto it = std::find(std::begin(kCounts), std::end(kCounts), gate.name);
    if (gate.passed || it != std::end(kCounts)) return false;
    return !(gate.statistic <= kTimes * gate.limit);
  });
}

Verdict combine(std::vector<OutputVerdict> outputs) {
  Verdict out;
  require(!outputs.empty(), "judge", "a checkpoint without outputs proves nothing");
  const bool all_blind = std::all_of(outputs.begin(), outputs.end(), [](const OutputVerdict& v) {
    return v.status == Status::blind;
  });
  out.status = all_blind ? Status::blind : Status::pass;
  for (const OutputVerdict& v : outputs) {
    const bool decides = !v.ill_conditioned.empty() || v.unjudged;
    if (v.status == Status::blind && !all_blind && !decides) continue;
    const bool first = out.reason.empty();
    const bool worst = worse(out.status, v.status) == v.status && v.status != out.status;
    out.status = worse(out.status, v.status);
    if (v.reason.empty() || !(worst || first)) continue;
    out.reason = outputs.size() > 1 ? v.name + ": " + v.reason : v.reason;
  }
  out.outputs = std::move(outputs);
  return out;
}

}  // namespace plumb::harness
