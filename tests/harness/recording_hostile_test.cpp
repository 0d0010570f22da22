// Recordings with one fault each.
#include <sys/stat.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "harness/io/safetensors.h"
#include "harness/io/sha256.h"
#include "harness/recording/recording.h"
#include "tests/catch.h"
#include "tests/harness/error_text.h"
#include "tests/harness/recording_builder.h"
#include "tests/harness/temporary_folder.h"

namespace plumb::harness {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Case {
  const char* at;     // JSON pointer
  const char* value;  // JSON text, or null: the field is removed
  const char* expected;
};

// What opening a good recording says once a field is changed.
std::string error_with(const fs::path& folder, const Json& good, const Case& c) {
  Json changed = good;
  const Json::json_pointer pointer(c.at);
  if (c.value == nullptr) {
    changed[pointer.parent_pointer()].erase(pointer.back());
  } else {
    changed[pointer] = Json::parse(c.value);
  }
  write_bytes(folder / "recording.json", changed.dump());
  return error_text([&] { Recording::open(folder); });
}

void check_cases(std::initializer_list<Case> cases) {
  const TemporaryFolder root;
  const fs::path folder = write_good_recording(root / "x");
  const Json good = Json::parse(read_bytes(folder / "recording.json"));
  CHECK_NOTHROW(Recording::open(folder));
  for (const Case& c : cases) {
    const std::string error = error_with(folder, good, c);
    CAPTURE(c.at, c.value ? c.value : "(removed)", error);
    CHECK(contains(error, "recording.json: "));
    CHECK(contains(error, c.expected));
  }
}

TEST_CASE("format and version come first") {
  check_cases({
      {"/format", "\"other\"", "format: is \"other\", expected \"plumbline-recording\""},
      {"/format", nullptr, "lacks the field \"format\""},
      {"/version", "4", "version: is 4; this reader knows versions 1 to 3"},
      {"/version", "0", "version: is 0; this reader knows versions 1 to 3"},
      {"/version", "1.0", "version: is a number, expected an integer"},
      {"/version", "\"1\"", "version: is a string"},
      {"/extra", "0", "extra: is an unknown field; known are format version"},
      {"/name", "\"\"", "name: is \"\" (0 bytes)"},
      {"/name", "\"a\\u001b[31m\"", "no control characters"},
      {"/config", "[]", "config: is an array, expected an object"},
      {"/checkpoints", "{}", "checkpoints: is an object, expected an array"},
  });
}

TEST_CASE("every field of the header must be there") {
  const TemporaryFolder root;
  const fs::path folder = write_good_recording(root / "x");
  const Json good = Json::parse(read_bytes(folder / "recording.json"));
  std::set<std::string> fields;  // all, at every depth
  const Json flat = good.flatten();
  for (const auto& [pointer, value] : flat.items()) {
    for (Json::json_pointer at(pointer); !at.empty(); at = at.parent_pointer()) {
      if (good[at.parent_pointer()].is_object()) fields.insert(at.to_string());
    }
  }
  int removed = 0;
  for (const std::string& field : fields) {
    const std::string name = Json::json_pointer(field).back();
    // Free-form, optional, or a collection that may lose this member.
    const bool may_go = field.rfind("/config/", 0) == 0 ||
                        field.rfind("/provenance/notes/", 0) == 0 || contains(field, "/params/") ||
                        name == "extra" || name == "valid" || name == "x" || name == "a" ||
                        name == "b" || name == "weight";
    if (may_go) continue;
    const std::string error = error_with(folder, good, {field.c_str(), nullptr, ""});
    CAPTURE(field, error);
    CHECK(contains(error, folder.string()));
    ++removed;
  }
  CHECK(removed > 100);
}

TEST_CASE("provenance, network and contracts are checked") {
  check_cases({
      {"/provenance/created", "\"2026-01-31 09:00:00Z\"", "provenance.created: is"},
      {"/provenance/dtype", "\"float32\"", "provenance.dtype: is \"float32\", expected one of f64"},
      {"/provenance/dtype", "\"f8_e4m3\"", "provenance.dtype: is \"f8_e4m3\""},
      {"/provenance/attention", "1", "attention: is an integer, expected a string"},
      {"/provenance/architecture", "\"\"", "architecture: is \"\""},
      {"/provenance/producer/torch", "2", "producer.torch: is an integer, expected a string"},
      {"/provenance/producer/python", nullptr, "lacks the field \"python\""},
      {"/provenance/model/seed", "1.5", "model.seed: is a number, expected an integer"},
      {"/provenance/model/weights_sha256", "\"00\"", "expected 64 lower-case hexadecimal"},
      {"/provenance/model/more", "1", "model.more: is an unknown field"},
      {"/provenance/run/mode", "\"prefill\"", "expected one of whole decode chunked"},
      {"/provenance/run/batch", "-1", "run.batch: is -1, expected at least 0"},
      {"/provenance/run/chunks", "[1, -1]", "run.chunks[1]: is -1"},
      {"/provenance/run/cache", "[]", "run.cache: is an array"},
      {"/provenance/notes", "[]", "notes: is an array, expected an object"},
      {"/provenance/warnings/0", "1", "warnings[0]: is an integer"},
      {"/provenance/user", "\"x\"", "provenance.user: is an unknown field"},
      {"/network/0/class", "\"\"", "network[0].class: is \"\""},
      {"/network/0/parameters/weight/shape", "[5]", "is [5], but the tensor \"model.norm.weight\""},
      {"/network/0/parameters/weight/dtype", "\"f16\"", "is \"f16\", but the tensor"},
      {"/network/0/parameters/weight/shape", "[-1]", "shape[0]: is -1"},
      {"/network/0/parameters/weight/tied", "1", "tied: is an integer"},
      {"/network/0/other", "1", "network[0].other: is an unknown field"},
      {"/contracts/eager/points", "\"sometimes\"", "is \"sometimes\", expected one of eager fused"},
      {"/contracts/eager/storage", "\"bfloat16\"", "contracts.eager.storage: is \"bfloat16\""},
      {"/contracts/eager/multiply", "\"\"", "contracts.eager.multiply: is \"\""},
      {"/contracts/eager/accumulator/bits", "0", "bits: is 0, expected at least 1"},
      {"/contracts/eager/accumulator/bits", "65", "bits: is 65, expected at most 64"},
      {"/contracts/eager/accumulator/bits", "24.0", "expected an integer"},
      {"/contracts/eager/accumulator/rounding", "\"up\"", "expected one of nearest toward_zero"},
      {"/contracts/eager/accumulator/block", "16", "block: is an unknown field"},
  });
}

TEST_CASE("files and the table of tensors are checked against what is there") {
  check_cases({
      {"/files/other", R"({"path": "x", "bytes": 1, "sha256": ""})", "files.other: is an unknown"},
      {"/files/tensors", nullptr, "lacks the field \"tensors\""},
      {"/files/weights", nullptr, "tensors.w0.file: is \"weights\", which files does not list"},
      {"/files/tensors/bytes", "1", "files.tensors.bytes: is 1, but "},
      {"/files/tensors/bytes", "-1", "files.tensors.bytes: is -1"},
      {"/files/tensors/sha256",
       "\""
       "A"
       "\"",
       "files.tensors.sha256: is"},
      {"/files/tensors/path", "\"nowhere\"", "files.tensors.path: "},
      {"/files/tensors/path", "\"..\"", "expected a plain file name"},
      {"/files/tensors/path", "\"/etc/passwd\"", "expected a plain file name"},
      {"/files/tensors/path", "\"../../weights-f32.safetensors\"", "expected a plain file name"},
      {"/files/tensors/path", "\"../decode-f32\"", "is a folder, expected a regular file"},
      {"/files/tensors/path", "\"../decode-f32/tensors.safetensors\"",
       "expected a plain file name"},
      {"/files/tensors/path", "\"tensors.safetensors\\u0001\"", "expected a plain file name"},
      {"/tensors/x1", "{}", "tensors.x1: its key is \"x1\", expected t<number> or w<number>"},
      {"/tensors/t", "{}", "tensors.t: its key is \"t\""},
      {"/tensors/t0x", "{}", "its key is \"t0x\""},
      {"/tensors/t0/name", "\"t0\"", "tensors.t0.name: is an unknown field"},
      {"/tensors/t0/file", "\"weights\"", "tensors.t0.file: is \"weights\", expected \"tensors\""},
      {"/tensors/t0/file", nullptr, "tensors.t0: lacks the field \"file\""},
      {"/tensors/w0/file", "\"tensors\"", "tensors.w0.file: is \"tensors\", expected \"weights\""},
      {"/tensors/w0/name", "\"model.norm.bias\"", "there is no tensor \"model.norm.bias\" in "},
      {"/tensors/t0/dtype", "\"i32\"", "tensors.t0.dtype: is i32, but "},
      {"/tensors/t0/dtype", "\"F32\"", "tensors.t0.dtype: is \"F32\", expected one of"},
      {"/tensors/t0/shape", "[2, 4, 3]", "tensors.t0.shape: is [2, 4, 3], but "},
      {"/tensors/t0/shape", "[24]", "tensors.t0.shape: is [24], but "},
      {"/tensors/t0/shape", "[-2, 3, 4]", "tensors.t0.shape[0]: is -2"},
      {"/tensors/t0/shape", "[2, 3, 4.0]", "tensors.t0.shape[2]: is a number"},
      {"/tensors/t0/shape", "[1, 1, 1, 1, 1, 1, 2, 3, 4]", "the rank is 9, expected at most 8"},
      {"/tensors/t0/shape", "[4294967296, 4294967296]", "more than 2^63 - 1 bytes"},
      {"/tensors/t0/sha256", "\"0\"", "tensors.t0.sha256: is \"0\""},
      {"/tensors/t9", R"({"file": "tensors", "dtype": "f32", "shape": [1], "sha256":
        "0000000000000000000000000000000000000000000000000000000000000000"})",
       "tensors.t9: there is no tensor \"t9\" in "},
  });
}

TEST_CASE("checkpoints are checked against contracts and tensors") {
  check_cases({
      {"/checkpoints/0/id", "\"model.norm#1\"",
       "but path, function and call give \"model.norm#0\""},
      {"/checkpoints/0/call", "1", "checkpoints[0].id: is \"model.norm#0\", but"},
      {"/checkpoints/0/path", "\"model\"", "checkpoints[0].id: is"},
      {"/checkpoints/1/function", nullptr, "checkpoints[1].id: is \"model.norm:add#0\", but"},
      {"/checkpoints/1/function", "\"\"", "checkpoints[1].function: is \"\""},
      {"/checkpoints/0/call", "-1", "call: is -1"},
      {"/checkpoints/0/step", "9223372036854775808", "step: is 9223372036854775808"},
      {"/checkpoints/0/block", "\"norm\"",
       "block: is \"norm\", expected one of module op embedding"},
      {"/checkpoints/0/contract", "\"bf16\"", "is \"bf16\", which contracts does not list"},
      {"/checkpoints/0/params", "[]", "params: is an array, expected an object"},
      {"/checkpoints/0/params/eps", "9007199254740993", "a double cannot hold exactly"},
      {"/checkpoints/0/params/eps", "[[1]]", "params.eps[0]: is an array, expected a number"},
      {"/checkpoints/0/params/eps", "[\"a\"]", "params.eps[0]: is \"a\""},
      {"/checkpoints/0/params/eps", "[true]", "params.eps[0]: is a bool"},
      {"/checkpoints/0/inputs/x/tensor", "\"t9\"",
       "is \"t9\", which the table of tensors does not"},
      {"/checkpoints/0/inputs/x/tensor", "0", "inputs.x.tensor: is an integer"},
      {"/checkpoints/0/inputs/x/axes", R"(["batch", "token"])",
       "has 2 names, but the tensor t0 [2, 3, 4] has 3 dimensions"},
      {"/checkpoints/0/inputs/x/axes/1", "\"time\"", "axes[1]: is \"time\", expected one of batch"},
      {"/checkpoints/0/inputs/x/axes/1", "\"batch\"", "names the axis batch twice"},
      {"/checkpoints/0/inputs/x/delta", "\"t2\"", "inputs.x.delta: is an unknown field"},
      {"/checkpoints/0/inputs/~1\\x", "{}", "lacks the field"},
      {"/checkpoints/0/weights/weight", "\"w1\"", "weights.weight: is \"w1\", which"},
      {"/checkpoints/0/outputs", "{}", "outputs: is empty"},
      {"/checkpoints/0/outputs/out/tensor", "\"w0\"", "axes: has 3 names, but the tensor w0 [4]"},
      {"/checkpoints/0/outputs/out/delta", "\"t3\"", "delta: is t3, bool [2, 1, 1], expected f32"},
      {"/checkpoints/0/outputs/out/delta", "\"w0\"",
       "delta: is w0, f32 [4], expected f32 [2, 3, 4]"},
      {"/checkpoints/0/outputs/out/delta", "0", "delta: is an integer, expected a string"},
      {"/checkpoints/0/outputs/out/error", "-1e-9", "error: is -1e-09, expected at least 0"},
      {"/checkpoints/0/outputs/out/error", "\"-inf\"", "expected at least 0"},
      {"/checkpoints/0/outputs/out/error", "null", "error: is null, expected a number"},
      {"/checkpoints/0/outputs/out/valid/tensor", "\"t0\"", "is t0 of f32, expected bool"},
      {"/checkpoints/0/outputs/out/valid/axes", R"(["batch", "token", "head"])",
       "has head, which the output's axes do not have"},
      {"/checkpoints/0/outputs/out/valid/axes", R"(["token", "batch", "channel"])",
       "is t3 [2, 1, 1] with extent 2 for token, expected 1 or 3"},
      {"/checkpoints/0/outputs/out/valid", "true", "valid: is a bool, expected an object"},
      {"/checkpoints/0/outputs/out/scale", "1", "outputs.out.scale: is an unknown field"},
      {"/checkpoints/0/note", "1", "checkpoints[0].note: is an unknown field"},
      {"/checkpoints/0", "[]", "checkpoints[0]: is an array"},
  });
}

TEST_CASE("an id appears once") {
  const TemporaryFolder root;
  const fs::path folder = write_good_recording(root / "x");
  Json changed = Json::parse(read_bytes(folder / "recording.json"));
  changed["checkpoints"].push_back(changed["checkpoints"][0]);
  write_bytes(folder / "recording.json", changed.dump());
  CHECK(contains(error_text([&] { Recording::open(folder); }),
                 "checkpoints[2].id: is \"model.norm#0\", which an earlier checkpoint has"));
}

TEST_CASE("reserved fields are accepted and reported") {
  const TemporaryFolder root;
  const fs::path folder = write_good_recording(root / "x");
  const Json good = Json::parse(read_bytes(folder / "recording.json"));
  const std::pair<const char*, const char*> cases[] = {
      {"/checkpoints/0/direction", "direction"},
      {"/checkpoints/0/quant", "quant"},
      {"/checkpoints/0/shard", "shard"},
      {"/checkpoints/0/margins", "margins"},
  };
  for (const auto& [at, expected] : cases) {
    Json changed = good;
    changed[Json::json_pointer(at)] = {{"any", 1}};
    write_bytes(folder / "recording.json", changed.dump());
    const Recording recording = Recording::open(folder);
    CHECK(recording.checkpoints()[0].reserved == std::vector<std::string>{expected});
    CHECK(recording.checkpoints()[1].reserved.empty());
  }
}

TEST_CASE("the chained oracle is complete and well formed") {
  check_cases({
      {"/checkpoints/0/outputs/out/chained_delta", "\"t9\"",
       "out.chained_delta: is \"t9\", which the table of tensors does not have"},
      {"/checkpoints/0/outputs/out/chained_delta", "\"t3\"",
       "chained_delta: is t3, bool [2, 1, 1], expected f32 [2, 3, 4] as the output has"},
      {"/checkpoints/0/outputs/out/chained_delta", "1", "chained_delta: is an integer"},
      {"/checkpoints/1/outputs/out/chained_delta", "null",
       "outputs.out: of \"model.norm#0\" lacks chained_delta, which other checkpoints have"},
      {"/checkpoints/0/amplification", "-1", "amplification: is -1, expected at least 0"},
      {"/checkpoints/0/amplification", "\"inf\"", "amplification: is a string"},
      {"/checkpoints/0/amplification", "null", "amplification: is null"},
  });
  const TemporaryFolder root;
  const fs::path folder = write_good_recording(root / "x");
  Json changed = Json::parse(read_bytes(folder / "recording.json"));
  CHECK_FALSE(Recording::open(folder).chained());
  changed["checkpoints"][0]["outputs"]["out"]["chained_delta"] = "t2";
  changed["checkpoints"][0]["amplification"] = 1.5;
  write_bytes(folder / "recording.json", changed.dump());
  const Recording recording = Recording::open(folder);
  CHECK(recording.chained());
  CHECK(recording.checkpoints()[0].outputs.at("out").chained->delta == "t2");
  CHECK(recording.checkpoints()[0].amplification == 1.5);
  changed["checkpoints"][1]["outputs"]["out"]["chained_delta"] = nullptr;
  write_bytes(folder / "recording.json", changed.dump());
  CHECK(contains(error_text([&] { Recording::open(folder); }),
                 "chained_delta: is in \"model.norm:add#0\", a add whose output \"out\" makes"));
}

TEST_CASE("a bit that flips in a payload is found when it is read") {
  const TemporaryFolder root;
  const fs::path folder = write_good_recording(root / "x");
  const std::string good = read_bytes(folder / "tensors.safetensors");
  const SafetensorsFile layout(File::open(folder / "tensors.safetensors"));
  const size_t payload = good.size() - 290;  // 3 * 96 + 2
  for (size_t at = payload; at < good.size(); at += at + 7 < good.size() ? 7 : 1) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1 << at % 8);
    write_bytes(folder / "tensors.safetensors", bad);
    const Recording recording = Recording::open(folder);
    int wrong = 0;
    for (const auto& [name, entry] : layout.entries()) {
      const std::string error = error_text([&] { recording.read(name); });
      if (error == "nothing was thrown") continue;
      CHECK(contains(error, "tensors.safetensors: the tensor \"" + name + "\" has SHA-256 "));
      CHECK(contains(error, "tensors." + name + ".sha256 is "));
      const auto offset = static_cast<int64_t>(at - payload);
      CHECK((entry.begin <= offset && offset < entry.end));
      ++wrong;
    }
    CHECK(wrong == 1);
    const std::vector<std::string> hashes = recording.wrong_hashes();
    REQUIRE(hashes.size() == 2);
    CHECK(contains(hashes[0], "files.tensors.sha256: is "));
    CHECK(contains(hashes[1], "tensors.safetensors: the tensor "));
  }
}

TEST_CASE("stale weights are found by their hash") {
  const TemporaryFolder root;
  const fs::path folder = write_good_recording(root / "x");
  std::string bytes = read_bytes(root / "x/weights-f32.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_bytes(root / "x/weights-f32.safetensors", bytes);
  const Recording recording = Recording::open(folder);
  CHECK_NOTHROW(recording.read("t0"));
  CHECK(contains(error_text([&] { recording.read("w0"); }),
                 "weights-f32.safetensors: the tensor \"model.norm.weight\" has SHA-256 "));
}

TEST_CASE("links, FIFOs and folders in the place of files are refused") {
  const TemporaryFolder root;
  const fs::path folder = write_good_recording(root / "x");
  const fs::path tensors = folder / "tensors.safetensors";
  fs::rename(tensors, folder / "moved");
  fs::create_symlink("moved", tensors);
  CHECK(contains(error_text([&] { Recording::open(folder); }), "is a symbolic link"));
  fs::remove(tensors);
  REQUIRE(::mkfifo(tensors.c_str(), 0600) == 0);
  CHECK(contains(error_text([&] { Recording::open(folder); }), "is a FIFO"));
  fs::remove(tensors);
  fs::create_directory(tensors);
  CHECK(contains(error_text([&] { Recording::open(folder); }), "is a folder"));
  fs::remove(tensors);
  CHECK(contains(error_text([&] { Recording::open(folder); }), "No such file"));
  fs::rename(folder / "recording.json", folder / "real.json");
  fs::create_symlink("real.json", folder / "recording.json");
  CHECK(contains(error_text([&] { Recording::open(folder); }), "is a symbolic link"));
  CHECK(contains(error_text([&] { Recording::open(root / "nowhere"); }), "No such file"));
}

TEST_CASE("a file may hold tensors that the recording does not list") {
  const TemporaryFolder root;
  const fs::path folder = write_good_recording(root / "x");
  Json changed = Json::parse(read_bytes(folder / "recording.json"));
  changed["tensors"].erase("t3");
  changed["checkpoints"][0]["outputs"]["out"].erase("valid");
  write_bytes(folder / "recording.json", changed.dump());
  CHECK(Recording::open(folder).checkpoints().size() == 2);
}

}  // namespace
}  // namespace plumb::harness
