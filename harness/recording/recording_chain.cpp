#include "harness/recording/recording_chain.h"

#include <algorithm>

#include "harness/io/printable.h"

namespace plumb::harness {
namespace {

bool is_layer(std::string_view block) {
  return block == "decoder_layer" || block == "mamba_layer" || block == "hybrid_layer";
}

// "model.layers.2.input_layernorm" is in one.
bool stands_in_layer(const std::string& path) {
  for (size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1)) {
    if (dot + 1 < path.size() && path[dot + 1] >= '0' && path[dot + 1] <= '9') return true;
  }
  return false;
}

bool is_final_norm(const Checkpoint& c) {
  return c.block == "rms_norm" && c.function.empty() && !stands_in_layer(c.path);
}

}  // namespace

std::vector<std::string_view> chain_outputs(const Checkpoint& c) {
  std::vector<std::string_view> names;
  if (c.block == "embedding" || c.block == "lm_head" || is_layer(c.block) || is_final_norm(c)) {
    names = {"out"};
  } else if (c.block == "kv_cache" || c.block == "static_kv_cache") {
    names = {"keys_after", "values_after"};
  } else if (c.block == "causal_conv1d" || c.block == "ssd_scan") {
    names = {"state_after"};
  }
  std::erase_if(names,
                [&](std::string_view name) { return !c.outputs.contains(std::string(name)); });
  return names;
}

std::string_view main_input(const Checkpoint& c) {
  if (c.block == "lm_head" || is_layer(c.block)) return "hidden";
  return is_final_norm(c) ? "x" : "";
}

bool is_chained(const std::vector<Checkpoint>& checkpoints) {
  return std::any_of(checkpoints.begin(), checkpoints.end(), [](const Checkpoint& c) {
    return std::any_of(c.outputs.begin(), c.outputs.end(),
                       [](const auto& output) { return output.second.chained.has_value(); });
  });
}

void check_chain(const std::vector<Checkpoint>& checkpoints, JsonValue list) {
  const bool chained = is_chained(checkpoints);
  auto checkpoint = checkpoints.begin();
  for (const JsonValue value : list.items()) {
    const Checkpoint& c = *checkpoint++;
    if (c.amplification && (!chained || main_input(c).empty())) {
      value.at("amplification")
          .fail("is in ", printable(c.id), ", a ", c.block, " that ",
                chained ? "takes nothing from the chain" : "has no chained_delta");
    }
    if (!chained) continue;
    const std::vector<std::string_view> expected = chain_outputs(c);
    for (const auto& [name, output] : c.outputs) {
      const JsonValue field = value.at("outputs").at(name);
      if (output.chained && output.sampled)
        field.at("rows").fail("cannot be combined with chained_delta");
      const bool wanted = std::find(expected.begin(), expected.end(), name) != expected.end();
      if (wanted == output.chained.has_value()) continue;
      if (wanted) {
        field.fail("of ", printable(c.id), " lacks chained_delta, which other checkpoints have: ",
                   "record the whole model again with the chained oracle");
      }
      field.at("chained_delta")
          .fail("is in ", printable(c.id), ", a ", c.block, " whose output ", printable(name),
                " makes no chain");
    }
  }
}

}  // namespace plumb::harness
