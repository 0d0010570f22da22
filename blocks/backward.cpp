#include "blocks/backward.h"

#include <algorithm>
#include <utility>

#include "kernels/core/error.h"
#include "kernels/gradients/tape.h"

namespace plumb::blocks {
namespace {

using Tensors = std::map<std::string, Tensor>;

std::string without(std::string_view prefix, const std::string& name) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : "";
}

}  // namespace

std::vector<std::string> run_backward(const BlockEntry& block, const BlockCall& call) {
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
  std::vector<std::pair<int64_t, std::string>> made;  // by the call that comes last on the way back
  for (const auto& [name, out] : call.outputs) {
    const std::string of = without(kGradient, name);
    const auto input = inputs.find(of);
    const Tensor& leaf = input != inputs.end() ? input->second : call.weights.all().at(of);
    tape.read_gradient(out, leaf);
    made.emplace_back(-tape.first_use(leaf), name);
  }
  std::ranges::sort(made);
  std::vector<std::string> names;
  for (auto& [use, name] : made) names.push_back(std::move(name));
  return names;
}

}  // namespace plumb::blocks
