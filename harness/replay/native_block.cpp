#include "harness/replay/native_block.h"

#include <map>
#include <memory>

#include "blocks/models/model_loss.h"
#include "harness/recording/model_config.h"
#include "harness/referee/cases.h"
#include "kernels/oracle/arithmetic.h"

namespace plumb::harness {

bool is_gradient_of_loss(const Checkpoint& checkpoint) {
  return forward_of(checkpoint.block) == "module" && checkpoint.function == "loss";
}

const blocks::BlockEntry* native_block(const Checkpoint& checkpoint) {
  const std::string_view forward = forward_of(checkpoint.block);
  if (forward.empty()) return blocks::find_block(checkpoint.block);
  if (is_gradient_of_loss(checkpoint)) return &blocks::model_loss_block();
  const blocks::BlockEntry* block = blocks::find_block(forward);
  return block && block->has_backward ? block : nullptr;
}

Checkpoint with_params(const Recording& recording, const Checkpoint& checkpoint) {
  Checkpoint out = checkpoint;
  if (is_gradient_of_loss(checkpoint)) {
    out.params = read_config(recording.config(), checkpoint.params.where() + ": config");
  }
  return out;
}

std::function<void(OutputCase&)> redrawn_gradients(const Recording& recording,
                                                   const Checkpoint& checkpoint,
                                                   const blocks::BlockEntry& block,
                                                   const HostOperands& operands, Device& oracle) {
  using Outputs = std::map<std::string, Tensor>;
  struct Made {  // when the first output asks
    Outputs float64;
    std::vector<Outputs> redrawn;
  };
  const auto run = [&](const HostOperands& of) {
    Placement placed = Placement::trusted(oracle, of);
    return execute(block, checkpoint, placed, oracle, {.fused = OpSet()}).outputs;
  };
  const auto made = std::make_shared<Made>();
  const auto is_right = [=, &recording, &checkpoint](Evidence e) {
    if (made->float64.empty())
      made->float64 = run(read_operands(recording, checkpoint, DType::f64));
    hold_to_float64(e, made->float64.at(e.name));
    return e.float64_share.value_or(0) <= 1;
  };
  const auto redrawn = [=, &operands](const std::string& name, int count) {
    std::vector<Tensor> out;
    for (int k = 0; k < count; ++k) {
      if (static_cast<int>(made->redrawn.size()) == k) {
        Arithmetic arithmetic{.noise = static_cast<uint64_t>(k) + 1, .random_rounding = true};
        const ArithmeticScope scope(arithmetic);
        made->redrawn.push_back(run(operands));
      }
      out.push_back(made->redrawn[static_cast<size_t>(k)].at(name));
    }
    return out;
  };
  return [=, &checkpoint](OutputCase& output) {
    const Evidence& e = output.evidence;
    if (output.rule.exact || size_of(output.rule.contract.storage) != 2) return;
    if (!e.has_expected_shape() || checkpoint.outputs.at(e.name).sampled) return;
    output.allowance.redraw = [=](int count) {
      return is_right(e) ? redrawn(e.name, count) : std::vector<Tensor>();
    };
  };
}

}  // namespace plumb::harness
