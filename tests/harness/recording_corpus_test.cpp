// The recordings that both readers, this one and Python's, are tested on: tests/data.
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "harness/recording/recording.h"
#include "tests/catch.h"
#include "tests/harness/error_text.h"
#include "tests/harness/temporary_folder.h"

namespace plumb::harness {
namespace {

namespace fs = std::filesystem;

const fs::path kCorpus = fs::path(PLUMB_SOURCE_DIR) / "tests/data/recordings";

// Faults that are found later: where a block runs, or where an output is judged.
const std::set<std::string> kFoundLater = {"bad-block-missing-input",  "bad-block-missing-param",
                                           "bad-block-missing-weight", "bad-delta-null-with-error",
                                           "bad-error-wrong",          "bad-rows-descending",
                                           "bad-model-at-descending",  "bad-model-at-out-of-range",
                                           "bad-model-at-negative",    "bad-bugs-at-out-of-range"};

void read_everything(const fs::path& folder) {
  const Recording recording = Recording::open(folder);
  for (const Checkpoint& checkpoint : recording.checkpoints()) {
    for (const auto& [name, ref] : checkpoint.inputs) recording.read(ref.tensor);
    for (const auto& [name, key] : checkpoint.weights) recording.read(key);
    for (const auto& [name, ref] : checkpoint.outputs) {
      recording.read(ref.tensor);
      if (ref.delta) recording.read(*ref.delta);
      if (ref.valid) recording.read(ref.valid->tensor);
      if (!ref.sampled) continue;
      for (const std::string& key :
           {ref.sampled->tokens, ref.sampled->reference, ref.sampled->oracle, ref.sampled->rms}) {
        recording.read(key);
      }
    }
  }
  recording.check_hashes();
}

TEST_CASE("the corpus' good recordings are read and its bad ones refused by name") {
  const auto expected = nlohmann::json::parse(read_bytes(kCorpus / "expected.json"));
  int good = 0;
  int bad = 0;
  for (const auto& entry : fs::directory_iterator(kCorpus)) {
    if (!entry.is_directory()) continue;
    const std::string name = entry.path().filename();
    const std::string error = error_text([&] { read_everything(entry.path()); });
    CAPTURE(name, error);
    if (name.rfind("good", 0) == 0 || kFoundLater.count(name) != 0) {
      CHECK(error == "nothing was thrown");
      ++good;
    } else {
      CHECK(error.rfind(kCorpus.string(), 0) == 0);
      CHECK(contains(error, expected.at(name).at("field").get<std::string>()));
      ++bad;
    }
  }
  CHECK(good >= 3 + static_cast<int>(kFoundLater.size()));
  CHECK(bad + static_cast<int>(kFoundLater.size()) == static_cast<int>(expected.size()));
}

}  // namespace
}  // namespace plumb::harness
