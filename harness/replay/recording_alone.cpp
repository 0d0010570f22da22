#include "harness/replay/recording_alone.h"

#include "harness/replay/recorded_bits.h"
#include "harness/trace/recorded_case.h"

namespace plumb::harness {

void judge_by_recording_alone(const Recording& recording, const Checkpoint& checkpoint,
                              OutputCase& output) {
  output.allowance.simulate = output.allowance.redraw = {};
  const bool elsewhere = output.rule.held_to_model && size_of(output.rule.contract.storage) == 2;
  const bool lacks = !output.evidence.model.defined() && !output.evidence.oracle.defined();
  if (!elsewhere || !lacks || !checkpoint.operations || !output.evidence.has_expected_shape())
    return;
  if (!output.rule.composite && !output.rule.coarser) {
    output.evidence.model = rounded_once(output.evidence, load_arrays(output.evidence));
    return;
  }
  output.rule.held_to_model = output.rule.coarser = false;
  output.evidence.model = recorded_model(recording, checkpoint, output).value_or(Tensor());
  follow_recorded_bits(recording, checkpoint, {}, output);
}

}  // namespace plumb::harness
