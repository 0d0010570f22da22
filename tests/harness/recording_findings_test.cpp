// Recordings with one fault each, of tests/data, and with several.
#include "harness/recording/recording_findings.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/catch.h"
#include "tests/harness/error_text.h"
#include "tests/harness/recording_builder.h"
#include "tests/harness/temporary_folder.h"

namespace plumb::harness {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

const fs::path kCorpus = fs::path(PLUMB_SOURCE_DIR) / "tests/data/recordings";

// A valid recording, in a folder of its own.
struct Valid {
  Valid() {
    json["checkpoints"][1]["params"] = Json::object();
    json["checkpoints"][1]["outputs"]["out"]["error"] = 0;
    json["checkpoints"][0]["outputs"]["out"]["error"] = error();
  }
  std::vector<std::string> findings() const {
    write_bytes(folder / "recording.json", json.dump());
    return recording_findings(folder);
  }
  // What the recording's own tensors give: of the first 12 elements, which are valid.
  static double error() {
    double above = 0, below = 0;
    for (int i = 0; i < 12; ++i) {
      const double r = static_cast<float>(i) / 7.0f, delta = 1e-8f;
      above += delta * delta;
      below += (r + delta) * (r + delta);
    }
    return std::sqrt(above / below);
  }

  TemporaryFolder root;
  fs::path folder = write_good_recording(root / "x");
  Json json = Json::parse(read_bytes(folder / "recording.json"));
};

TEST_CASE("the corpus' good recordings are read and its bad ones refused by name") {
  const auto expected = nlohmann::json::parse(read_bytes(kCorpus / "expected.json"));
  int good = 0;
  int bad = 0;
  for (const auto& entry : fs::directory_iterator(kCorpus)) {
    if (!entry.is_directory()) continue;
    const std::string name = entry.path().filename();
    const std::vector<std::string> findings = recording_findings(entry.path());
    CAPTURE(name, findings);
    if (name.rfind("good", 0) == 0) {
      CHECK(findings.empty());
      ++good;
      continue;
    }
    ++bad;
    REQUIRE(!findings.empty());
    for (const std::string& finding : findings) CHECK(finding.rfind(kCorpus.string(), 0) == 0);
    CHECK(contains(findings[0], expected.at(name).at("field").get<std::string>()));
  }
  CHECK(good >= 3);
  CHECK(bad == static_cast<int>(expected.size()));
}

TEST_CASE("each checkpoint, file and tensor is looked at by itself") {
  Valid valid;
  CHECK(valid.findings().empty());
  const Json good = valid.json;

  valid.json["checkpoints"][0]["step"] = -1;
  valid.json["checkpoints"][1]["outputs"]["out"]["axes"] = {"batch"};
  std::vector<std::string> found = valid.findings();
  REQUIRE(found.size() == 2);
  CHECK(contains(found[0], "recording.json: checkpoints[0].step: is -1"));
  CHECK(contains(found[1], "recording.json: checkpoints[1].outputs.out.axes: has 1 names"));

  valid.json = good;
  for (const char* key : {"t0", "t2"}) valid.json["tensors"][key]["sha256"] = std::string(64, '0');
  found = valid.findings();
  REQUIRE(found.size() == 2);
  CHECK(contains(found[0], "tensors.t0.sha256 is 0000"));
  CHECK(contains(found[1], "tensors.t2.sha256 is 0000"));

  valid.json = good;
  valid.json["checkpoints"][0]["params"].erase("eps");
  valid.json["checkpoints"][0]["inputs"]["y"] = valid.json["checkpoints"][0]["inputs"]["x"];
  valid.json["checkpoints"][1]["inputs"].erase("b");
  found = valid.findings();
  REQUIRE(found.size() == 3);
  CHECK(contains(found[0], "\"model.norm#0\": params: eps is missing"));
  CHECK(contains(found[1], "\"model.norm#0\": inputs: \"y\" is not one of a rms_norm's"));
  CHECK(contains(found[2], "\"model.norm:add#0\": inputs: b is missing"));

  valid.json = good;
  for (const int i : {0, 1}) valid.json["checkpoints"][i]["outputs"]["out"]["error"] = 0.5;
  found = valid.findings();
  REQUIRE(found.size() == 2);
  CHECK(contains(found[0], "\"model.norm#0\": outputs.out.error: is 0.5, but the tensors give"));
  CHECK(contains(found[1], "\"model.norm:add#0\": outputs.out.error: is 0.5, but the tensors "));
}

TEST_CASE("a chain is looked at where all checkpoints are sound") {
  Valid valid;
  valid.json["checkpoints"][0]["amplification"] = 1.5;
  std::vector<std::string> found = valid.findings();
  REQUIRE(found.size() == 1);
  CHECK(contains(found[0], "amplification: is in \"model.norm#0\", a rms_norm that has no"));
  valid.json["checkpoints"][1]["call"] = -1;
  found = valid.findings();
  REQUIRE(found.size() == 1);
  CHECK(contains(found[0], "checkpoints[1].call: is -1"));
}

}  // namespace
}  // namespace plumb::harness
