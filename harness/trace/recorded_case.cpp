#include "harness/trace/recorded_case.h"

#include <algorithm>
#include <cmath>

#include "harness/recording/inside.h"
#include "harness/recording/layout.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// Whether values of one dtype are exact in another.
bool holds(DType wide, DType narrow) {
  return unit_roundoff(wide) <= unit_roundoff(narrow) && info(wide).max >= info(narrow).max;
}

std::vector<double> doubles(const Tensor& t) {
  return {t.data<double>(), t.data<double>() + t.numel()};
}

}  // namespace

std::optional<double> stated_score(const Checkpoint& checkpoint) {
  const blocks::Params* params = &checkpoint.params;
  const auto nested = params->values().find("attention");
  if (nested != params->values().end()) params = std::get_if<blocks::Params>(&nested->second);
  if (!params || !params->has("max_abs_score")) return {};
  return params->number_or_null("max_abs_score");
}

void require_stated_score(const Checkpoint& checkpoint, double computed) {
  const std::optional<double> stated = stated_score(checkpoint);
  if (!stated) return;
  // A layer's q and k were rounded in the run that stated it. Scores below 1 cost less than one
  // rounding, and may be what cancellation left.
  const bool alone = checkpoint.block == "sdpa";
  const double tolerance = alone ? 1e-6 * computed : 0.25 * std::max(computed, 1.0);
  if (std::fabs(*stated - computed) <= tolerance) return;
  throw BadInput(text(checkpoint.params.where(), ": max_abs_score is ", *stated,
                      ", the recorded operands give ", computed, "; record it again"));
}

std::optional<Spread> widest_spread(const std::optional<Spread>& spread,
                                    const std::optional<Spread>& truncated) {
  if (!spread || !truncated) return spread;
  Spread out = *spread;
  for (SpreadOf& gate : out.gates) {
    const SpreadOf* other = truncated->find(gate.gate);
    if (other && other->mean > gate.mean) gate = *other;
  }
  return out;
}

void take_inside(OutputCase& out, const Recording& recording, const Checkpoint& checkpoint) {
  const OutputRef& ref = checkpoint.outputs.at(out.evidence.name);
  out.allowance.spread = widest_spread(ref.spread, ref.truncated);
  if (!out.allowance.spread) {
    throw Unsupported(text("output \"", out.evidence.name,
                           "\" has no simulated kernels, which its contract (",
                           words_listed(checkpoint.inside), ") is shown by"));
  }
  out.evidence.model = recorded_model(recording, checkpoint, out).value_or(Tensor());
  out.rule.held_to_model = out.rule.coarser = out.rule.conformance = out.rule.leaf = false;
  out.rule.composite = true;
  out.rule.cascade_stages.clear();
  out.rule.bottleneck = {};
  out.allowance.simulate = out.allowance.redraw = {};
}

OutputCase recorded_case(const Recording& recording, const Checkpoint& checkpoint,
                         const std::string& output) {
  const OutputRef& ref = checkpoint.outputs.at(output);
  OutputCase out;
  Evidence& e = out.evidence;
  e.name = output;
  e.axes = ref.axes;
  e.labels = ref.labels;
  e.reference = recording.read(ref.tensor);
  if (ref.delta) e.delta = recording.read(*ref.delta);
  if (ref.valid) {
    e.valid = recording.read(ref.valid->tensor);
    e.valid_axes = ref.valid->axes;
  }
  if (ref.ill_conditioned && !ref.sampled) e.ill_conditioned = recording.read(*ref.ill_conditioned);
  out.rule.max_abs_score = stated_score(checkpoint).value_or(0);
  out.allowance.unstable = ref.unstable;
  if (ref.operations) out.allowance.narrowed = narrowed_by(*ref.operations, recording.dtype());
  return out;
}

std::optional<Tensor> recorded_model(const Recording& recording, const Checkpoint& checkpoint,
                                     const OutputCase& output) {
  const OutputRef& ref = checkpoint.outputs.at(output.evidence.name);
  if (!ref.model || !output.allowance.narrowed.empty()) return {};
  if (ref.model->at.empty()) return output.evidence.reference;
  const std::string where =
      text(checkpoint.params.where(), ": outputs.", output.evidence.name, ".model");
  return rounded_model(output.evidence.reference, recording.read(ref.model->at),
                       recording.read(ref.model->values), where);
}

std::vector<int64_t> chosen_tokens(const Recording& recording, const Checkpoint& checkpoint,
                                   const std::string& output) {
  const SampledRef& ref = *checkpoint.outputs.at(output).sampled;
  const Tensor stored = recording.read(ref.tokens);
  check_ascending(stored, ref.of, text(checkpoint.params.where(), ": outputs.", output, ".rows"));
  return {stored.data<int64_t>(), stored.data<int64_t>() + stored.numel()};
}

void sample_rows(Evidence& out, const Recording& recording, const Checkpoint& checkpoint,
                 const Tensor& y, DType dtype) {
  const OutputRef& ref = checkpoint.outputs.at(out.name);
  const Shape expected = recording.output_shape(ref);
  require<BadInput>(y.shape() == expected, "judge", "output ", out.name, " is ", y.shape(),
                    ", expected ", expected);
  const Layout layout = layout_of(y.shape(), ref.axes);
  const std::vector<double> matrix = to_matrix(y, layout);
  RowSample sample;
  sample.tokens = chosen_tokens(recording, checkpoint, out.name);
  sample.of = ref.sampled->of;
  sample.y = sketch_rows(matrix, layout.rows, layout.columns);
  sample.reference = doubles(recording.read(ref.sampled->reference));
  sample.oracle = doubles(recording.read(ref.sampled->oracle));
  sample.rms = doubles(recording.read(ref.sampled->rms));
  sample.comparable = holds(dtype, recording.dtype());
  for (size_t i = 0; i < matrix.size(); ++i) {
    if (std::isfinite(matrix[i])) continue;
    if (sample.not_finite++ == 0) {
      sample.first_bad_row = static_cast<int64_t>(i) / layout.columns;
    }
  }
  out.y = take_rows(y, token_axis(ref.axes), sample.tokens);
  out.sample = std::move(sample);
}

}  // namespace plumb::harness
