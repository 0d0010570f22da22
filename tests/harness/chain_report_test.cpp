// What a chain looks like on its way from a worker, in JSON lines and for people.
#include <nlohmann/json.hpp>

#include "harness/replay/result_json.h"
#include "harness/report/chain_text.h"
#include "harness/report/console.h"
#include "harness/report/results_json.h"
#include "tests/catch.h"
#include "tests/harness/sample_results.h"

namespace plumb::harness {
namespace {

using Json = nlohmann::ordered_json;

ChainRow row(const std::string& checkpoint, int64_t step, double chained) {
  ChainRow out;
  out.checkpoint = checkpoint;
  out.block = "decoder_layer";
  out.output = "out";
  out.step = step;
  out.isolated = 1e-3;
  out.isolated_limit = 3e-3;
  out.chained = chained;
  out.chained_limit = 0.02;
  out.reference = 0.01;
  out.forecast = 0.0125;
  return out;
}

// Layer 1 wrong in step 1; a cache whose stored keys changed.
CheckpointResult sample_chain() {
  CheckpointResult out = sample_result("model", Status::fail);
  out.checkpoint = "(chain)";
  ChainReport chain;
  chain.rows = {row("model.layers.0#0", 0, 0.005), row("model.layers.1#0", 0, 0.010),
                row("model.layers.0#1", 1, 0.015), row("model.layers.1#1", 1, 0.25)};
  chain.rows[1].before = 0;
  chain.rows[1].amplification = 2;
  chain.rows[3].shadow = 0.2;
  chain.rows[3].shadow_limit = 3e-3;
  chain.rows[3].diagnosis = Diagnosis::wiring;
  ChainRow keys = row("model.layers.1.self_attn:kv_cache#1", 1, 0);
  keys.output = "keys_after";
  keys.changed = 4;
  keys.diagnosis = Diagnosis::wiring;
  chain.rows.push_back(keys);
  chain.first_divergence = "model.layers.1#1";
  chain.culprit = "model.layers.1.self_attn:rotary";
  chain.culprit_block = "decoder_layer";
  out.chain = chain;
  return out;
}

TEST_CASE("a chain comes back from a worker as it was, in JSON too") {
  const CheckpointResult sent = sample_chain();
  const CheckpointResult back = unpacked(packed({sent, {}})).result;
  CHECK(checkpoint_json(back) == checkpoint_json(sent));
  const Json chain = Json::parse(checkpoint_json(back))["chain"];
  CHECK(chain["first_divergence"] == "model.layers.1#1");
  CHECK(chain["onset"].is_null());
  CHECK(chain["culprit"] == "model.layers.1.self_attn:rotary");
  REQUIRE(chain["rows"].size() == 5);
  CHECK(chain["rows"][1]["inherited"] == 0.010);
  CHECK(chain["rows"][1]["shadow"] == "nan");
  CHECK(chain["rows"][3]["excess"] == 20);
  CHECK(chain["rows"][3]["diagnosis"] == "wiring");
  CHECK(chain["rows"][4]["changed_bytes"] == 4);
  CHECK(Json::parse(checkpoint_json(failing()))["chain"].is_null());
}

size_t lines_with(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_CASE("a chain's table: the worst step of every layer, or all of them and wrong states") {
  const CheckpointResult result = sample_chain();
  const std::string few = chain_table(*result.chain, false);
  CHECK(lines_with(few, "\n") == 3);  // with the titles
  CHECK(lines_with(few, "model.layers.0#1") == 1);
  CHECK(lines_with(few, "model.layers.1#1") == 1);
  CHECK(lines_with(few, "#0") == 0);
  const std::string all = chain_table(*result.chain, true);
  CHECK(lines_with(all, "\n") == 6);
  CHECK(lines_with(all, "kv_cache#1 keys_after") == 1);
  CHECK(lines_with(all, "wiring") == 2);
  CHECK(lines_with(failure_text(result), "model.layers.0#0") == 1);
}

}  // namespace
}  // namespace plumb::harness
