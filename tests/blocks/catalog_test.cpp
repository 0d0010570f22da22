// The catalog is the list of fixtures/blocks.md, and every block in it reads its operands strictly.
#include <algorithm>
#include <fstream>
#include <set>

#include "harness/execution/execute.h"
#include "harness/recording/select.h"
#include "kernels/core/error.h"
#include "tests/blocks/support.h"

using Catch::Contains;

namespace plumb::blocks::testing {
namespace {

// First column of the table under "## Blocks".
std::set<std::string> documented_blocks() {
  std::ifstream in(harness::default_fixtures() / "blocks.md");
  std::set<std::string> out;
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("## ")) inside = line == "## Blocks";
    if (!inside || !line.starts_with("| ")) continue;
    out.insert(line.substr(2, line.find(" |") - 2));
  }
  out.erase("block");
  return out;
}

// One checkpoint of every block and set of operands, with its operands on the oracle's dtype.
struct Sample {
  harness::Recording recording;
  const harness::Checkpoint* checkpoint;
  const BlockEntry* block;
  harness::HostOperands operands;
};

std::string signature(const harness::Checkpoint& c) {
  std::string out = c.block;
  for (const auto& [name, value] : c.params.values()) out += " " + name;
  if (c.params.has("type")) out += c.params.string("type");
  for (const auto& [name, ref] : c.inputs) out += " " + name;
  for (const auto& [name, key] : c.weights) out += " " + name;
  return out;
}

const std::vector<Sample>& samples() {
  static const std::vector<Sample> all = [] {
    std::vector<Sample> out;
    std::set<std::string> seen;
    for (const auto& folder : harness::find_recordings(harness::default_fixtures())) {
      const harness::Recording recording = harness::Recording::open(folder);
      for (const harness::Checkpoint& c : recording.checkpoints()) {
        const BlockEntry* block = find_block(c.block);
        if (!block || !seen.insert(signature(c)).second) continue;
        out.push_back({recording, &c, block, harness::read_operands(recording, c, DType::f64)});
      }
    }
    return out;
  }();
  return all;
}

void run(const Sample& sample, const harness::Checkpoint& checkpoint,
         const harness::HostOperands& operands) {
  static const std::unique_ptr<Device> oracle = open_device("oracle");
  harness::execute(*sample.block, checkpoint, operands, *oracle, {});
}

// A value of another type than that of `value`.
Params::Value other_type(const Params::Value& value) {
  if (std::holds_alternative<std::string>(value)) return 1.0;
  return std::string("a string");
}

// Params without or with another `name`.
Params changed(const Params& params, const std::string& name, const Params::Value* value) {
  Params out(params.where());
  for (const auto& [other, old] : params.values()) {
    if (other != name) out.set(other, old);
    else if (value) out.set(other, *value);
  }
  return out;
}

// For the judge, or with a default: what transformers defines, or what all models but one have.
bool is_optional(const std::string& name) {
  static const std::set<std::string> names = {"max_abs_score",    "mscale", "mscale_all_dim",
                                              "attention_factor", "rotary", "adapters",
                                              "adapter",          "call"};
  return names.count(name) > 0;
}

using Rewrap = std::function<Params(const Params&)>;

// Every parameter of `params` missing, or of another type, is refused by name; `rewrap` puts the
// changed object back where it belongs.
void check_params(const Sample& sample, const Params& params, const Rewrap& rewrap) {
  for (const auto& [name, value] : params.values()) {
    if (const Params* inner = std::get_if<Params>(&value)) {
      const std::string object = name;
      check_params(sample, *inner, [&](const Params& changed_inner) {
        const Params::Value nested = changed_inner;
        return rewrap(changed(params, object, &nested));
      });
    }
    if (is_optional(name)) continue;
    INFO("parameter " << name);
    harness::Checkpoint wrong = *sample.checkpoint;
    wrong.params = rewrap(changed(params, name, nullptr));
    CHECK_THAT(message_of<BadInput>([&] { run(sample, wrong, sample.operands); }),
               Contains("\"" + name + "\" is missing"));
    const Params::Value other = other_type(value);
    wrong.params = rewrap(changed(params, name, &other));
    CHECK_THAT(message_of<BadInput>([&] { run(sample, wrong, sample.operands); }),
               Contains("\"" + name + "\" is a "));
  }
  harness::Checkpoint wrong = *sample.checkpoint;
  Params more = params;
  more.set("new_switch", true);
  wrong.params = rewrap(more);
  CHECK_THAT(message_of<BadInput>([&] { run(sample, wrong, sample.operands); }),
             Contains("does not read") && Contains("new_switch"));
}

bool is_optional_input(const std::string& name) {
  return name == "key_valid" || name == "token_valid" || name == "mask" || name == "transformer" ||
         name == "bias" || name.ends_with("_before");
}

}  // namespace

TEST_CASE(
    "the catalog has every block of the recording format but the generic ones, and no other") {
  std::set<std::string> documented = documented_blocks();
  CHECK(documented.size() > 20);
  CHECK(documented.erase("module") == 1);
  CHECK(documented.erase(std::string(kOpBlock)) == 1);
  std::set<std::string> catalog;
  for (const BlockEntry& entry : block_catalog()) {
    CHECK(catalog.insert(std::string(entry.name)).second);
    CHECK(find_block(entry.name) == &entry);
    CHECK(entry.run != nullptr);
    CHECK_FALSE(entry.summary.empty());
  }
  CHECK(catalog == documented);
  CHECK(find_block("module") == nullptr);
  CHECK(find_block("") == nullptr);
  CHECK(find_block("rms") == nullptr);
}

TEST_CASE("every block refuses parameters that are unknown, missing or of another type, by name") {
  std::set<std::string> blocks;
  for (const Sample& sample : samples()) {
    blocks.insert(sample.checkpoint->block);
    INFO(sample.recording.name() << " " << sample.checkpoint->id);
    CHECK_NOTHROW(run(sample, *sample.checkpoint, sample.operands));
    check_params(sample, sample.checkpoint->params, [](const Params& p) { return p; });
  }
  CHECK(blocks.size() == block_catalog().size());
}

TEST_CASE("every block refuses an input that is missing, by name") {
  for (const Sample& sample : samples()) {
    for (const auto& [name, tensor] : sample.operands.inputs) {
      if (is_optional_input(name)) continue;
      INFO(sample.recording.name() << " " << sample.checkpoint->id << " " << name);
      harness::HostOperands operands = sample.operands;
      operands.inputs.erase(name);
      CHECK_THAT(message_of<BadInput>([&] { run(sample, *sample.checkpoint, operands); }),
                 Contains("input \"" + name + "\" is missing"));
    }
  }
}

TEST_CASE("every block refuses a weight that is missing, and one that is not used, by name") {
  for (const Sample& sample : samples()) {
    INFO(sample.recording.name() << " " << sample.checkpoint->id);
    harness::HostOperands more = sample.operands;
    more.weights["surplus"] = host_tensor(DType::f64, {2});
    CHECK_THAT(message_of<BadInput>([&] { run(sample, *sample.checkpoint, more); }),
               Contains("the block does not use the weight(s)") && Contains("surplus"));
    for (const auto& [name, tensor] : sample.operands.weights) {
      if (!name.ends_with("weight")) continue;
      INFO("weight " << name);
      harness::HostOperands fewer = sample.operands;
      fewer.weights.erase(name);
      CHECK_THAT(message_of<BadInput>([&] { run(sample, *sample.checkpoint, fewer); }),
                 Contains("is missing"));
    }
  }
}

TEST_CASE("every block refuses an output that is missing, by name") {
  for (const Sample& sample : samples()) {
    for (size_t i = 0; i < sample.operands.outputs.size(); ++i) {
      const std::string name = sample.operands.outputs[i].name;
      const bool state = sample.checkpoint->block != "kv_cache" && name.ends_with("_after");
      if (state) continue;  // written only on request
      INFO(sample.recording.name() << " " << sample.checkpoint->id << " " << name);
      harness::HostOperands operands = sample.operands;
      operands.outputs.erase(operands.outputs.begin() + static_cast<std::ptrdiff_t>(i));
      CHECK_THAT(message_of<BadInput>([&] { run(sample, *sample.checkpoint, operands); }),
                 Contains("output \"" + name + "\" is missing"));
    }
  }
}

TEST_CASE("a choice that does not exist is refused by name") {
  Bench bench("oracle");
  const Tensor x = bench.random({2, 4}, 1), w = bench.random({4}, 2), out = bench.empty({2, 4});
  const Operands one = {{{"x", x}}, {}, {{"out", out}}};
  const Operands norm = {{{"x", x}}, {{"weight", w}}, {{"out", out}}};
  const auto says = [&](const char* block, const Params& params, const Operands& operands) {
    return message_of<Error>([&] { run_block(bench, block, params, operands); });
  };
  CHECK_THAT(
      says("rms_norm",
           params_of({{"eps", 1e-5}, {"weight_offset", 0.0}, {"rounding", std::string("never")}}),
           norm),
      Contains("rounding is \"never\""));
  CHECK_THAT(says("activation", params_of({{"function", std::string("swish9")}}), one),
             Contains("activation \"swish9\""));
  CHECK_THAT(says("scale", params_of({{"operation", std::string("add")}, {"factor", 2.0}}), one),
             Contains("operation is \"add\""));
  const Tensor q = bench.random({1, 2, 3, 4}, 3), table = bench.random({1, 3, 4}, 4);
  CHECK_THAT(says("rotary", params_of({{"style", std::string("spiral")}}),
                  {{{"q", q}, {"k", q}, {"cos", table}, {"sin", table}}, {}, {{"q", q}, {"k", q}}}),
             Contains("style is \"spiral\""));
  CHECK_THAT(says("repeat_kv", params_of({{"repeats", 3.0}}),
                  {{{"x", q}}, {}, {{"out", bench.empty({1, 4, 3, 4})}}}),
             Contains("repeats is 3"));
}

}  // namespace plumb::blocks::testing
