#include "harness/recording/recording.h"

#include <cmath>
#include <limits>
#include <thread>

#include "harness/io/sha256.h"
#include "tests/catch.h"
#include "tests/harness/error_text.h"
#include "tests/harness/recording_builder.h"
#include "tests/harness/temporary_folder.h"

namespace plumb::harness {
namespace {

namespace fs = std::filesystem;
using Axes = std::vector<std::string>;

TEST_CASE("a good recording is read to the last field") {
  const TemporaryFolder root;
  const fs::path folder = write_good_recording(root / "x");
  const Recording recording = Recording::open(folder);
  CHECK(recording.folder() == folder);
  CHECK(recording.name() == "x/decode-f32");
  CHECK(recording.dtype() == DType::f32);
  CHECK(recording.architecture() == "LlamaForCausalLM");
  CHECK(recording.model_type() == "llama");
  CHECK(recording.mode() == "decode");
  CHECK(recording.provenance().at("model").at("seed").unsigned_integer() == UINT64_MAX);
  CHECK(recording.config().at("hidden_size").integer() == 4);
  CHECK(recording.network().size() == 2);
  const std::string json = read_bytes(folder / "recording.json");
  CHECK(recording.sha256() == sha256_hex(json.data(), static_cast<int64_t>(json.size())));

  REQUIRE(recording.contracts().size() == 2);
  const Contract& eager = recording.contracts().at("eager");
  CHECK(eager.storage == DType::f32);
  CHECK(eager.accumulator.bits == 24);
  CHECK(eager.accumulator.rounding == SumRounding::nearest);
  CHECK(eager.points == RoundingPoints::eager);
  const Contract& fused = recording.contracts().at("fused");
  CHECK(fused.storage == DType::bf16);
  CHECK(fused.multiply == DType::bf16);
  CHECK(fused.accumulator.bits == 25);
  CHECK(fused.accumulator.rounding == SumRounding::toward_zero);
  CHECK(fused.points == RoundingPoints::fused);

  const TensorInfo& weight = recording.tensor_info("w0");
  CHECK(weight.file == "weights");
  CHECK(weight.name == "model.norm.weight");
  CHECK(weight.shape == Shape{4});
  CHECK(recording.tensor_info("t3").dtype == DType::boolean);
  CHECK(recording.tensor_info("t3").name == "t3");
  CHECK(contains(error_text([&] { recording.tensor_info("t9"); }), "there is no tensor \"t9\""));
}

TEST_CASE("checkpoints come in order, with everything they refer to") {
  const TemporaryFolder root;
  const Recording recording = Recording::open(write_good_recording(root / "x"));
  REQUIRE(recording.checkpoints().size() == 2);
  const Checkpoint& norm = recording.checkpoints()[0];
  CHECK(norm.id == "model.norm#0");
  CHECK(norm.block == "rms_norm");
  CHECK(norm.path == "model.norm");
  CHECK(norm.function.empty());
  CHECK(norm.contract == "eager");
  CHECK(norm.inputs.at("x").tensor == "t0");
  CHECK(norm.inputs.at("x").axes == Axes{"batch", "token", "channel"});
  CHECK(norm.weights.at("weight") == "w0");
  const OutputRef& out = norm.outputs.at("out");
  CHECK(out.tensor == "t1");
  CHECK(out.delta == "t2");
  CHECK(out.error == 1e-8);
  REQUIRE(out.valid.has_value());
  CHECK(out.valid->tensor == "t3");
  CHECK(norm.reserved.empty());

  const Checkpoint& add = recording.checkpoints()[1];
  CHECK(add.id == "model.norm:add#0");
  CHECK(add.function == "add");
  CHECK(add.step == 1);
  CHECK_FALSE(add.outputs.at("out").delta.has_value());
  CHECK(std::isnan(add.outputs.at("out").error));
  CHECK_FALSE(add.outputs.at("out").valid.has_value());
}

TEST_CASE("params keep every kind of value") {
  const TemporaryFolder root;
  const Recording recording = Recording::open(write_good_recording(root / "x"));
  const blocks::Params& params = recording.checkpoints()[1].params;
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(params.is_null("none"));
  CHECK(params.boolean("flag"));
  CHECK(params.integer("whole") == 3);
  CHECK(params.number("real") == 0.5);
  CHECK(params.string("name") == "silu");
  CHECK(params.number("infinite") == infinity);
  CHECK(params.numbers("list") == std::vector<double>{1, 2.5, -infinity});
  CHECK(params.numbers("empty").empty());
  CHECK(std::isnan(params.object("inner").object("deep").number("x")));
  CHECK_NOTHROW(params.finish());
  CHECK(contains(error_text([&] { params.number("missing"); }),
                 "recording.json: model.norm:add#0: params: parameter \"missing\""));
  CHECK(contains(error_text([&] { params.object("inner").object("deep").number("y"); }),
                 "params.inner.deep: parameter \"y\""));
}

TEST_CASE("tensors are read, checked and shared") {
  const TemporaryFolder root;
  const Recording recording = Recording::open(write_good_recording(root / "x"));
  const Tensor x = recording.read("t0");
  REQUIRE(x.shape() == Shape{2, 3, 4});
  CHECK(x.data<float>()[0] == -11.5f);
  CHECK(x.data<float>()[23] == 11.5f);
  CHECK(recording.read("w0").data<float>()[3] == 4.0f);
  CHECK(recording.read("t3").data<uint8_t>()[0] == 1);
  CHECK(recording.read("t0").raw() == x.raw());
  const Recording copy = recording;
  CHECK(copy.read("t0").raw() == x.raw());
  CHECK(recording.wrong_hashes().empty());
  CHECK(contains(error_text([&] { recording.read("t9"); }), "no tensor \"t9\""));
}

TEST_CASE("threads can read at the same time") {
  const TemporaryFolder root;
  const Recording recording = Recording::open(write_good_recording(root / "x"));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        wrong += recording.read("t0").data<float>()[23] != 11.5f;
        wrong += recording.read("w0").data<float>()[0] != 1.0f;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("the recording stays readable when its files are replaced, as they are open") {
  const TemporaryFolder root;
  const fs::path folder = write_good_recording(root / "x");
  const Recording recording = Recording::open(folder);
  fs::remove_all(root / "x");
  CHECK(recording.read("t1").data<float>()[7] == 1.0f);
}

TEST_CASE("recordings are found at a folder, below it and by their file") {
  const TemporaryFolder root;
  const fs::path a = write_good_recording(root / "a");
  const fs::path b = write_good_recording(root / "b");
  using Paths = std::vector<fs::path>;
  CHECK(find_recordings(root.path()) == Paths{a, b});
  CHECK(find_recordings(a) == Paths{a});
  CHECK(find_recordings(a / "recording.json") == Paths{a});
  CHECK(Recording::open(a / "recording.json").name() == "x/decode-f32");
  // An interrupted writer's leftovers and the targets of links are ignored.
  fs::copy(a, root / "b/.decode-f32.partial-7");
  fs::create_directory_symlink(root / "a", root / "b/link");
  CHECK(find_recordings(root.path()) == Paths{a, b});
  fs::create_directory(root / "empty");
  CHECK(contains(error_text([&] { find_recordings(root / "empty"); }),
                 "empty: there is no recording.json here or in any folder below"));
  CHECK(contains(error_text([&] { find_recordings(root / "missing"); }), "No such file"));
}

}  // namespace
}  // namespace plumb::harness
