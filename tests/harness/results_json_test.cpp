#include "harness/report/results_json.h"

#include <nlohmann/json.hpp>

#include "tests/catch.h"
#include "tests/harness/error_text.h"
#include "tests/harness/sample_results.h"
#include "tests/harness/temporary_folder.h"

namespace plumb::harness {
namespace {

nlohmann::json parsed(const std::string& line) {
  CHECK(line.find('\n') == std::string::npos);
  return nlohmann::json::parse(line);
}

TEST_CASE("determinism and margins are listed once they are measured") {
  CheckpointResult result = passing();
  result.determinism = Determinism::d0;
  result.runs = 3;
  result.margins.emplace();
  const nlohmann::json none = parsed(checkpoint_json(result));
  CHECK(none["margins"] == nlohmann::json::object());
  CHECK(none["passing_bugs"] == nlohmann::json::array());
  result.margins = {{"softcap left out", kInf}, {"window one key longer", 0.5}, {"eps", 1}};
  const nlohmann::json line = parsed(checkpoint_json(result));
  CHECK(line["determinism"] == "D0");
  CHECK(line["runs"] == 3);
  CHECK(line["margins"] ==
        nlohmann::json({{"softcap left out", "inf"}, {"window one key longer", 0.5}, {"eps", 1}}));
  CHECK(line["passing_bugs"] == nlohmann::json({"window one key longer", "eps"}));
  CHECK(parsed(checkpoint_json(passing()))["passing_bugs"].is_null());
  result.determinism = Determinism::d1;
  CHECK(parsed(checkpoint_json(result))["determinism"] == "D1");
}

TEST_CASE("a checkpoint's line has every statistic with its limit") {
  CheckpointResult result = failing();
  OutputVerdict& output = result.outputs[0];
  output.statistics.tensor = 3.1e-2;
  output.statistics.families = {{"token", 0.5, kInf, 7, 0.25, 1.5}};
  output.statistics.element_at = 12;
  output.reference.tensor = 3.6e-3;
  output.recorded_error = 3.7e-3;
  output.classes.y.nan = 4;
  output.classes.wrong = 3;
  output.floors = {1e-5, 2e-5, 3e-5};
  output.details.values = {{"max_abs", kNan, 3}};
  output.details.octaves = {5, 0, 1};
  output.details.ulps = {6, 2};
  output.details.worst_groups = {{"token", "token 7", 0.5}};
  output.conformance = Conformance{100, 40, 0, 2, 0.01, 8, false};
  const nlohmann::json line = parsed(checkpoint_json(result));
  CHECK(line["type"] == "checkpoint");
  CHECK(line["status"] == "fail");
  CHECK(line["block"] == "sdpa");
  CHECK(line["fused"] == true);
  CHECK(line["again"] == result.again);
  CHECK(line["details"] == result.details);
  CHECK(line["determinism"] == "not measured");
  CHECK(line["runs"] == 0);
  CHECK(line["margins"].is_null());

  const nlohmann::json& out = line["outputs"][0];
  REQUIRE(out["gates"].size() == 3);
  CHECK(out["gates"][1] ==
        nlohmann::json({{"name", "tensor"},
                        {"statistic", 3.1e-2},
                        {"limit", 7.4e-3},
                        {"derivation", {{"c", 2}, {"reference", 3.6e-3}, {"floor", 1e-3}}},
                        {"passed", false},
                        {"where", ""}}));
  CHECK(out["gates"][2]["where"] == "token 5, head 3, head_dim 1");
  CHECK(out["statistics"]["E_T"] == 3.1e-2);
  CHECK(out["statistics"]["M_E_at"] == 12);
  CHECK(out["statistics"]["families"][0]["normalised"] == "inf");
  CHECK(out["statistics"]["families"][0]["worst"] == 7);
  CHECK(out["reference_statistics"]["E_T"] == 3.6e-3);
  CHECK(out["recorded_error"] == 3.7e-3);
  CHECK(out["classes"]["y"]["nan"] == 4);
  CHECK(out["classes"]["wrong"] == 3);
  CHECK(out["floors"]["element"] == 3e-5);
  CHECK(out["informative"]["values"]["max_abs"] == nlohmann::json({{"value", "nan"}, {"at", 3}}));
  CHECK(out["informative"]["octaves"] == nlohmann::json({5, 0, 1}));
  CHECK(out["informative"]["ulps"] == nlohmann::json({6, 2}));
  CHECK(out["informative"]["worst_groups"][0]["group"] == "token 7");
  CHECK(out["conformance"]["differ"] == 40);
  CHECK(out["where"]["region"] == "token >= 5");
  CHECK(out["where"]["maps"][0]["energy"] == nlohmann::json({0, "inf"}));
}

TEST_CASE("what was not computed is null, and minus infinity has a name") {
  CheckpointResult result = passing();
  result.outputs[0].statistics.gain = -kInf;
  const nlohmann::json line = parsed(checkpoint_json(result));
  CHECK(line["outputs"][0]["conformance"].is_null());
  CHECK(line["outputs"][0]["where"].is_null());
  CHECK(line["outputs"][0]["statistics"]["gain"] == "-inf");
}

TEST_CASE("doubles are written so that they read back the same") {
  CheckpointResult result = passing();
  for (const double x : {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, -0.0}) {
    result.outputs[0].recorded_error = x;
    CHECK(parsed(checkpoint_json(result))["outputs"][0]["recorded_error"].get<double>() == x);
  }
}

TEST_CASE("hostile text stays one line of valid JSON") {
  const nlohmann::json run = parsed(run_json(sample_run()));
  CHECK(run["schema"] == kResultsSchema);
  CHECK(run["environment"]["compiler"] == "GCC 12.2.0");
  const std::string line = checkpoint_json(hostile(failing()));
  for (const char c : line) CHECK((static_cast<unsigned char>(c) >= 0x20 && c != 0x7f));
  const std::string block = parsed(line)["block"].get<std::string>();
  CHECK(contains(block, std::string("'\0\xef\xbf\xbd\n", 6)));  // the invalid byte became U+FFFD
}

TEST_CASE("the summary counts every status") {
  CheckpointResult blind = passing("rms_norm");
  blind.blind_to = {"weight"};
  const nlohmann::json line = parsed(summary_json(sample_outcome({passing(), failing(), blind})));
  CHECK(line["checkpoints"] == 3);
  CHECK(line["counts"].size() == kStatusCount);
  CHECK(line["counts"]["pass"] == 2);
  CHECK(line["counts"]["timeout"] == 0);
  CHECK(line["exit_code"] == 1);
  CHECK(line["seconds"] == 1.5);
  CHECK(line["blind_features"] ==
        nlohmann::json::array(
            {{{"block", "rms_norm"}, {"feature", "weight"}, {"blind", 1}, {"seen", 0}}}));
}

}  // namespace
}  // namespace plumb::harness
