// Tensors that have the bytes of another one, in another shape.
#include <nlohmann/json.hpp>

#include "harness/recording/recording.h"
#include "tests/catch.h"
#include "tests/harness/error_text.h"
#include "tests/harness/recording_builder.h"
#include "tests/harness/temporary_folder.h"

namespace plumb::harness {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// The good recording with t4: t0's bytes as [6, 4].
Json with_shared(const fs::path& folder) {
  Json json = Json::parse(read_bytes(folder / "recording.json"));
  json["tensors"]["t4"] = json["tensors"]["t0"];
  json["tensors"]["t4"]["payload_of"] = "t0";
  json["tensors"]["t4"]["shape"] = {6, 4};
  return json;
}

Recording open(const fs::path& folder, const Json& json) {
  write_bytes(folder / "recording.json", json.dump());
  return Recording::open(folder);
}

TEST_CASE("a tensor with another one's payload is read in its own shape") {
  const TemporaryFolder root;
  const fs::path folder = write_good_recording(root / "x");
  const Recording recording = open(folder, with_shared(folder));
  CHECK(recording.tensor_info("t4").shape == Shape{6, 4});
  for (const char* key : {"t4", "t0", "t4"}) {
    const Tensor tensor = recording.read(key);
    REQUIRE(tensor.shape() == recording.tensor_info(key).shape);
    CHECK(tensor.data<float>()[0] == -11.5f);
    CHECK(tensor.data<float>()[23] == 11.5f);
  }
  CHECK(recording.wrong_hashes().empty());
}

TEST_CASE("the order of the table does not matter") {
  const TemporaryFolder root;
  const fs::path folder = write_good_recording(root / "x");
  Json json = with_shared(folder);
  const Json owner = json["tensors"]["t0"];
  json["tensors"].erase("t0");
  json["tensors"]["t0"] = owner;
  CHECK(open(folder, json).read("t4").shape() == Shape{6, 4});
}

TEST_CASE("a payload that was changed is found through each of its tensors") {
  const TemporaryFolder root;
  const fs::path folder = write_good_recording(root / "x");
  const Json json = with_shared(folder);
  std::string bytes = read_bytes(folder / "tensors.safetensors");
  bytes[bytes.size() - 290] ^= 1;  // t0 is the first one
  write_bytes(folder / "tensors.safetensors", bytes);
  const Recording recording = open(folder, json);
  const std::string error = error_text([&] { recording.read("t4"); });
  CHECK(contains(error, "tensors.safetensors: the tensor \"t0\" has SHA-256 "));
  CHECK(contains(error, "tensors.t4.sha256 is "));
  CHECK(contains(error_text([&] { recording.read("t0"); }), "tensors.t0.sha256 is "));
}

TEST_CASE("a payload that is not the other one's is refused with both values") {
  const std::string zeros(64, '0');
  const struct {
    const char* at;
    Json value;
    std::string expected;
  } cases[] = {
      {"/tensors/t4/payload_of", "t9",
       "t4.payload_of: is \"t9\", which the table of tensors does not have"},
      {"/tensors/t4/payload_of", 0, "t4.payload_of: is an integer, expected a string"},
      {"/tensors/t4/payload_of", "t4", "t4.payload_of: is t4, which itself has the payload of"},
      {"/tensors/t4/payload_of", "w0",
       "t4.payload_of: is w0, whose payload is in \"weights\", not in \"tensors\""},
      {"/tensors/t0/payload_of", "t1", "t4.payload_of: is t0, which itself has the payload of"},
      {"/tensors/w0/payload_of", "t0", "tensors.w0.payload_of: is an unknown field"},
      {"/tensors/t4/model_file", "x", "tensors.t4.model_file: is an unknown field"},
      {"/tensors/t4/file", "weights", "t4.file: is \"weights\", expected \"tensors\" for t4"},
      {"/tensors/t4/dtype", "i32", "t4.dtype: is i32, but t0, whose payload it has, is f32"},
      {"/tensors/t4/shape",
       {6, 3},
       "t4.shape: is [6, 3] of 72 bytes, but t0, whose payload it has, is [2, 3, 4] of 96"},
      {"/tensors/t4/sha256", zeros,
       "t4.sha256: is " + zeros + ", but that of t0, whose payload it has, is "},
  };
  const TemporaryFolder root;
  const fs::path folder = write_good_recording(root / "x");
  const Json good = with_shared(folder);
  for (const auto& c : cases) {
    Json changed = good;
    changed[Json::json_pointer(c.at)] = c.value;
    if (changed["tensors"]["t0"].contains("payload_of")) {  // t1 fits in everything
      changed["tensors"]["t0"]["sha256"] = good["tensors"]["t1"]["sha256"];
    }
    const std::string error = error_text([&] { open(folder, changed); });
    CAPTURE(c.at, error);
    CHECK(contains(error, "recording.json: tensors."));
    CHECK(contains(error, c.expected));
  }
}

TEST_CASE("a generator has no payload to share and takes none") {
  const TemporaryFolder root;
  const fs::path folder = write_good_recording(root / "x");
  const Json rule = {{"kind", "splitmix64"}, {"seed", 7}, {"exponent", -15}, {"offset", 0}};
  Json beside = with_shared(folder);
  beside["tensors"]["t4"]["generator"] = rule;
  beside["tensors"]["t4"].erase("file");
  CHECK(contains(error_text([&] { open(folder, beside); }),
                 "t4.payload_of: cannot be combined with a generator"));
  Json of_rule = with_shared(folder);
  of_rule["tensors"]["t0"]["generator"] = rule;
  of_rule["tensors"]["t0"].erase("file");
  CHECK(contains(error_text([&] { open(folder, of_rule); }),
                 "t4.payload_of: is t0, which is generated and has no payload"));
}

}  // namespace
}  // namespace plumb::harness
