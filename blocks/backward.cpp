#include "blocks/backward.h"

#include <algorithm>

#include "kernels/core/error.h"
#include "kernels/gradients/tape.h"

namespace plumb::blocks {
namespace {

using Tensors = std::map<std::string, Tensor>;

std::string without(std::string_view prefix, const std::string& name) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : "";
}

}  // namespace

bool has_backward(const BlockEntry& block) {
  constexpr std::string_view kConstant[] = {
      "rotary_frequencies", "rotary_table",    "causal_mask", "position_ids",
      "kv_cache",           "static_kv_cache", "conv_cache",  "ssm_cache",
  };
  return std::find(std::begin(kConstant), std::end(kConstant), block.name) == std::end(kConstant);
}

void run_backward(const BlockEntry& block, const BlockCall& call) {
  Ops& ops = call.ctx.ops;
  Tape tape(ops);
  Tensors inputs, cotangents, outputs;
  for (const auto& [name, t] : call.inputs) {
    const std::string of = without(kCotangent, name);
    (of.empty() ? inputs : cotangents).emplace(of.empty() ? name : of, t);
  }
  const auto seen = [](const Tensor& t) { return t.rank() == 0 ? t.view({1}) : t; };
  for (const auto& [name, t] : inputs) tape.hold(t);
  for (const auto& [name, t] : call.weights.all()) tape.hold(t);
  for (const auto& [name, t] : cotangents) {
    outputs[name] = ops.arena().take(t.dtype(), t.shape());
  }
  Context ctx{tape, nullptr, {}};
  block.run({ctx, call.params, call.weights, inputs, outputs});
  for (const auto& [name, t] : cotangents) tape.seed(seen(outputs.at(name)), seen(t));
  tape.run_backward();
  for (const auto& [name, out] : call.outputs) {
    const std::string of = without(kGradient, name);
    const auto input = inputs.find(of);
    tape.read_gradient(out, input != inputs.end() ? input->second : call.weights.all().at(of));
  }
}

}  // namespace plumb::blocks
