#include "harness/replay/gradient_chain.h"

#include <algorithm>

#include "blocks/backward.h"
#include "harness/judge/output_limits.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

std::string without_last(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

// What the recording calls the innermost block that has the module.
std::string block_of(const Recording& recording, std::string path) {
  for (; !path.empty(); path = without_last(path)) {
    for (const Checkpoint& c : recording.checkpoints()) {
      if (c.path == path && forward_of(c.block).empty()) return c.block;
    }
  }
  return "module";
}

ChainRow row_of_gradient(const Recording& recording, const OutputVerdict& output) {
  ChainRow row;
  row.checkpoint = without_last(output.name.substr(blocks::kGradient.size()));
  row.block = block_of(recording, row.checkpoint);
  row.output = output.name;
  row.isolated_failed = is_failure(output.status);
  const auto worst = std::ranges::max_element(
      output.gates, [](const Gate& a, const Gate& b) { return ratio(a) < ratio(b); });
  if (worst != output.gates.end()) {
    row.chained = worst->statistic;
    row.chained_limit = worst->limit;
  }
  return row;
}

// "3.4 times its limit, tile 5"
std::string words_of_gates(const OutputVerdict& output) {
  const std::string worst = worst_of(output.gates);
  return worst.empty() ? output.reason : worst;
}

}  // namespace

void add_gradient_chain(const Recording& recording, const std::vector<std::string>& names,
                        CheckpointResult& result) {
  ChainReport chain;
  std::string before;  // the last that passes
  for (const std::string& name : names) {
    const auto output = std::ranges::find(result.outputs, name, &OutputVerdict::name);
    if (output == result.outputs.end()) continue;
    ChainRow row = row_of_gradient(recording, *output);
    const bool first = row.isolated_failed && chain.culprit.empty();
    if (row.isolated_failed) row.diagnosis = first ? Diagnosis::here : Diagnosis::inherited;
    if (first) {
      chain.first_divergence = chain.onset = chain.culprit = row.checkpoint;
      chain.culprit_block = row.block;
      result.reason += text("; from the loss back the first beyond its limit is ", name, " (",
                            row.block, "), ", words_of_gates(*output));
      result.details.push_back(before.empty()
                                   ? "no gradient comes before it: look at the head and the loss"
                                   : text("the last within its limit before it is ", before,
                                          ": look at the backward of what is between them"));
    }
    if (!row.isolated_failed && chain.culprit.empty()) before = name;
    chain.rows.push_back(std::move(row));
  }
  if (!chain.rows.empty()) result.chain = std::move(chain);
}

}  // namespace plumb::harness
