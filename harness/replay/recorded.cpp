#include "harness/replay/recorded.h"

#include <algorithm>
#include <cmath>

#include "harness/judge/conformance.h"
#include "harness/judge/limit_basis.h"
#include "harness/judge/spread_limit.h"
#include "harness/judge/verdict.h"
#include "harness/replay/recorded_bits.h"
#include "harness/trace/asked_contract.h"
#include "harness/trace/open_choices.h"
#include "harness/trace/recorded_bugs.h"
#include "harness/trace/recorded_case.h"
#include "harness/trace/stated_error.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

bool is_narrow(DType dtype) { return is_floating(dtype) && size_of(dtype) == 2; }

// The recorder's own words on a call that it could not run again, or not see through.
std::string warning_of(const Recording& recording, const Checkpoint& checkpoint) {
  const bool backward = !forward_of(checkpoint.block).empty();
  const std::string call =
      checkpoint.id.substr(0, checkpoint.id.rfind('#')) + (backward ? "/backward" : "");
  for (const JsonValue warning : recording.provenance().at("warnings").items()) {
    const std::string_view words = warning.string();
    for (const char* lack : {" has no oracle", " has no rounded model", ": what "}) {
      if (words.starts_with(call + lack)) return std::string(words);
    }
  }
  return {};
}

// Why an output without a trace cannot be judged; "" where nothing was computed, so that every
// kernel gives its bits.
std::string cannot_judge(const Recording& recording, const Checkpoint& checkpoint,
                         const OutputRef& output) {
  const JsonValue provenance = recording.provenance();
  const auto oracle = provenance.at("notes").find("oracle");
  if (oracle && oracle->kind() == JsonValue::Kind::boolean && !oracle->boolean()) {
    return "it was recorded without the float64 oracle";
  }
  if (checkpoint.inputs.empty() && checkpoint.weights.empty()) {
    return "it has no operands: a tensor that was kept to be looked at";
  }
  if (const std::string warning = warning_of(recording, checkpoint); !warning.empty()) {
    return warning;
  }
  const auto spread = provenance.at("run").find("spread");
  if (!spread || spread->integer() == 0) {
    return "it was recorded without simulated kernels (spread 0), from which limits come here";
  }
  if (output.delta) return "it has no simulated kernels, from which limits come here";
  return {};
}

OutputCase case_of(const Recording& recording, const Checkpoint& checkpoint,
                   const std::string& name, const Tensor& y) {
  const OutputRef& ref = checkpoint.outputs.at(name);
  OutputCase out = recorded_case(recording, checkpoint, name);
  out.allowance.narrowed.clear();  // what the run stored is its contract here
  if (ref.sampled) {
    sample_rows(out.evidence, recording, checkpoint, y, y.dtype());
  } else {
    out.evidence.y = y;
  }
  out.rule.contract = recording.contracts().at(checkpoint.contract);
  out.rule.contract.storage = out.rule.contract.multiply = y.dtype();
  if (!is_floating(out.evidence.reference.dtype())) {
    out.rule.exact = true;
    take_choices(out.evidence, recording, ref);
    return out;
  }
  out.rule.composite = true;
  if (checkpoint.operations) {
    out.allowance.spread = widest_spread(ref.spread, ref.truncated);
    if (!out.allowance.spread && y.dtype() != DType::f64) {
      throw Unsupported(
          text("output \"", name, "\" has no simulated kernels, from which limits come here"));
    }
  } else if (const std::string why = cannot_judge(recording, checkpoint, ref); !why.empty()) {
    throw Unsupported(text("no native block \"", checkpoint.block, "\" to judge by, and ", why));
  } else {
    out.rule.exact = true;
  }
  out.rule.conformance = false;
  if (!out.rule.exact && is_narrow(y.dtype()) && out.evidence.has_expected_shape()) {
    out.evidence.model = recorded_model(recording, checkpoint, out).value_or(Tensor());
  }
  return out;
}

void judge_each(const Recording& recording, const Checkpoint& checkpoint, const Outputs& given,
                const ExternalOptions& options, const std::function<void(OutputCase&)>& allow,
                CheckpointResult& result) {
  if (const std::string words = warning_of(recording, checkpoint); !words.empty()) {
    result.details.push_back(words);
  }
  result.contract = contract_text(recording.contracts().at(checkpoint.contract), checkpoint.inside);
  note_inside(checkpoint, result);
  result.details.insert(result.details.end(), checkpoint.remarks.begin(), checkpoint.remarks.end());
  std::vector<OutputCase> cases;
  std::vector<OutputVerdict> verdicts;
  for (const auto& [name, y] : given) {
    OutputCase output = case_of(recording, checkpoint, name, y);
    if (allow) allow(output);
    const std::string words = follow_recorded_bits(recording, checkpoint, options.demanded, output);
    verdicts.push_back(judge(output));
    if (y.dtype() == output.evidence.reference.dtype()) {
      require_stated_error(checkpoint, output.evidence, verdicts.back());
    }
    if (!words.empty() && !is_gross(verdicts.back())) {
      add_diagnosis(result, given.size() > 1 ? name : "", words);
    }
    note_sample(output, result);
    note_choices(recording, checkpoint.outputs.at(name), output.evidence, result);
    note_judged(checkpoint.outputs.at(name), output.evidence, verdicts.back(), result);
    cases.push_back(std::move(output));
  }
  if (!result.diagnosis.empty()) result.details.push_back("bits: " + result.diagnosis);
  Verdict verdict = combine(std::move(verdicts));
  result.status = verdict.status;
  result.reason = verdict.reason;
  result.outputs = std::move(verdict.outputs);
  if (options.margins && !checkpoint.bugs.empty()) result.margins = recorded_margins(checkpoint);
  if (result.status != Status::fail) return;
  result.known_bug = recorded_bug(recording, checkpoint, cases, result.outputs);
  if (result.known_bug) result.reason += "; " + words_of(*result.known_bug);
}

}  // namespace

bool judged_as_recorded(const Checkpoint& checkpoint) {
  return checkpoint.block == "module" || !forward_of(checkpoint.block).empty() ||
         has_quantised_weights(checkpoint);
}

void judge_recorded(const Recording& recording, const Checkpoint& checkpoint,
                    const Outputs& outputs, const ExternalOptions& options,
                    CheckpointResult& result, const std::function<void(OutputCase&)>& allow) {
  if (!checkpoint.reserved.empty()) {
    throw Unsupported(text("uses \"", checkpoint.reserved.front(),
                           "\", which this version of the harness cannot read"));
  }
  const Outputs given = given_outputs(recording, checkpoint, outputs, result);
  judge_each(recording, checkpoint, given, options, allow, result);
}

void judge_made(const Recording& recording, const Checkpoint& checkpoint, const Outputs& made,
                bool margins, const std::function<void(OutputCase&)>& allow,
                CheckpointResult& result) {
  ExternalOptions options;
  options.margins = margins;
  judge_each(recording, checkpoint, made, options, allow, result);
}

}  // namespace plumb::harness
