#include "harness/bench/model_bench.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "harness/bench/random_checkpoint.h"
#include "harness/bench/report.h"
#include "harness/bench/shapes.h"
#include "harness/model/model_folder.h"
#include "kernels/core/error.h"
#include "tests/catch.h"
#include "tests/faults/faulty_device.h"
#include "tests/harness/error_text.h"

namespace plumb::harness {
namespace {

namespace fs = std::filesystem;

constexpr ModelBenchOptions kQuickly{12, 3, 1};

// Forgets what it has seen at every single token.
struct Forgetful final : blocks::CausalLm {
  std::unique_ptr<blocks::CausalLm> inner;
  Device& device;

  Forgetful(std::unique_ptr<blocks::CausalLm> model, Device& on)
      : inner(std::move(model)), device(on) {}
  int64_t vocabulary() const override { return inner->vocabulary(); }
  DType dtype() const override { return inner->dtype(); }
  blocks::Sequence begin(Device& on, int64_t batch, int64_t max_length,
                         const std::vector<int64_t>& padding,
                         blocks::CacheKind kind) const override {
    return inner->begin(on, batch, max_length, padding, kind);
  }
  void forward(blocks::Context& ctx, const Tensor& logits, const Tensor& ids,
               blocks::Sequence& sequence) const override {
    if (ids.dim(1) > 1) return inner->forward(ctx, logits, ids, sequence);
    blocks::Sequence fresh = begin(device, 1, sequence.max_length, {}, sequence.kind);
    inner->forward(ctx, logits, ids, fresh);
  }
};

}  // namespace

TEST_CASE("the models of the bench shapes have the weights of the published ones") {
  const auto [shape, published] = GENERATE(table<const char*, const char*>({
      {"llama3-8b", "Meta-Llama-3-8B"},
      {"llama3.2-1b", "Llama-3.2-1B"},
      {"gemma2-2b", "gemma-2-2b"},
      {"zamba2-1.2b", "Zamba2-1.2B"},
  }));
  INFO(shape);
  const fs::path configs = fs::path(PLUMB_SOURCE_DIR) / "tests" / "configs";
  nlohmann::json theirs = nlohmann::json::parse(std::ifstream(configs / text(published, ".json")));
  const nlohmann::json ours = nlohmann::json::parse(find_bench_shape(shape).config);
  for (const auto& [key, value] : ours.items()) {
    INFO(key);
    const bool renamed = key == "tie_word_embeddings" || key == "chunk_size";
    const bool derived = key == "head_dim" && value == theirs["hidden_size"].get<int>() /
                                                           theirs["num_attention_heads"].get<int>();
    CHECK((theirs.contains(key) || renamed || derived));
    if (theirs.contains(key)) CHECK(theirs[key] == value);
  }
  const fs::path file = fs::temp_directory_path() / text("plumb-", ::getpid(), ".json");
  std::ofstream(file) << ours;
  const blocks::Weights expected = blocks::expected_weights(
      blocks::Config(read_model_config(configs / text(published, ".json"))));
  CHECK(blocks::expected_weights(blocks::Config(read_model_config(file))).asked() ==
        expected.asked());
  fs::remove(file);
}

TEST_CASE("a model of every kind is measured in 16 and 32 bits") {
  const auto shape = GENERATE("tiny", "tiny-gemma2", "tiny-zamba2");
  const auto dtype = GENERATE(DType::f32, DType::bf16);
  RandomCheckpoint checkpoint(find_bench_shape(shape).config, dtype);
  const ModelFolder folder(checkpoint.folder());
  checkpoint.remove();  // what is mapped stays
  CHECK_FALSE(fs::exists(checkpoint.folder()));
  const auto device = open_device("cpu", 1), oracle = open_device("oracle");
  const auto model = folder.load(*device, dtype);
  const ModelBenchResult r = run_model_bench(*model, *device, *oracle, kQuickly);
  CAPTURE(shape, name_of(dtype), r.reason, r.guard_error, r.guard_limit);
  CHECK(r.status == Status::pass);
  CHECK(r.prefill > 0);
  CHECK(r.decode_p10 > 0);
  CHECK(r.decode_p10 <= r.decode);
  CHECK(r.decode <= r.decode_p90);
  CHECK(r.state_bytes > 0);
  CHECK(r.step.bytes > static_cast<double>(folder.bytes()) / 2);
  CHECK(r.guard_error < r.guard_limit);
  CHECK_NOTHROW(folder.check());
  const ModelBenchLabels labels{shape, dtype, kQuickly, folder.bytes(), 1, 1e9};
  const auto line = nlohmann::json::parse(model_bench_json(r, *device, labels));
  CHECK(line["decode_tokens_per_s"] == 1 / r.decode);
  CHECK(line["allowed_rss_bytes"] == folder.bytes() + r.state_bytes + (256 << 20));
}

TEST_CASE("a model whose decoding or whose ops are wrong has no figures") {
  const RandomCheckpoint checkpoint(find_bench_shape("tiny").config, DType::bf16);
  const ModelFolder folder(checkpoint.folder());
  const auto device = open_device("cpu", 1), oracle = open_device("oracle");
  std::unique_ptr<blocks::CausalLm> model = folder.load(*device, DType::bf16);
  const ModelBenchLabels labels{"tiny", DType::bf16, kQuickly, folder.bytes(), 1, 1e9};
  SECTION("single tokens without what came before") {
    const Forgetful wrong(std::move(model), *device);
    const ModelBenchResult r = run_model_bench(wrong, *device, *oracle, kQuickly);
    CHECK(r.status == Status::fail);
    CHECK(contains(r.reason, "before timing: decoded logits differ by"));
    CHECK(!nlohmann::json::parse(model_bench_json(r, *device, labels)).contains("decode_us"));
    CHECK(contains(model_bench_text(r, *device, labels), "fail: before timing"));
  }
  SECTION("a wrong kernel") {
    testing::Hooks hooks;
    hooks.rms_norm = [](testing::Call& call, const Tensor& out, const Tensor& x,
                        const Tensor& weight, RmsNormParams params) {
      params.eps = 0.1;
      call.ops.rms_norm(out, x, weight, params);
    };
    testing::FaultyDevice faulty(*device, hooks);
    const ModelBenchResult r = run_model_bench(*model, faulty, *oracle, kQuickly);
    CHECK(r.status == Status::fail);
    CHECK(contains(r.reason, "before timing: rms_norm: "));
  }
}

TEST_CASE("a checkpoint of random weights is gone with its object") {
  fs::path folder;
  {
    const RandomCheckpoint checkpoint(find_bench_shape("tiny").config, DType::f16);
    folder = checkpoint.folder();
    CHECK(ModelFolder(folder).dtype() == DType::f16);
  }
  CHECK(!fs::exists(folder));
  CHECK(contains(error_text<UsageError>([] { find_bench_shape("llama9"); }),
                 "unknown shape \"llama9\"; known: llama3-8b"));
}

}  // namespace plumb::harness
