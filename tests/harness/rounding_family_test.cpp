// Kernels that round at points of their own, judged as an external program's: right ones pass and
// are named, wrong ones that round alike fail.
#include "harness/referee/rounding_family.h"

#include "harness/recording/select.h"
#include "harness/referee/oracle_runs.h"
#include "harness/replay/external.h"
#include "tests/catch.h"

namespace plumb::harness {
namespace {

// What a kernel with this arithmetic makes of a checkpoint, and of another whose params it reads.
class Kernel {
 public:
  Kernel(const char* recording, const std::string& id)
      : recording_(Recording::open(recording)), oracle_(open_device("oracle")) {
    for (const Checkpoint& checkpoint : recording_.checkpoints()) {
      if (checkpoint.id == id) checkpoint_ = checkpoint;
    }
    REQUIRE_FALSE(checkpoint_.id.empty());
    wrong_ = checkpoint_;
  }

  blocks::Params& params() { return wrong_.params; }

  // Changed by name of the rounding point; "all" keeps every value that eager code rounds.
  std::map<std::string, Tensor> outputs(const std::vector<std::string>& changed,
                                        std::optional<int64_t> key_tile = {},
                                        bool own_table = false) {
    const blocks::BlockEntry& block = *blocks::find_block(wrong_.block);
    const HostOperands operands = read_operands(recording_, wrong_, recording_.dtype());
    const OpSet fused = key_tile ? OpSet().set() : OpSet();
    std::map<std::string, Tensor> out;
    for (const auto& [name, ref] : wrong_.outputs) {
      OracleRuns runs(recording_, wrong_, block, operands, *oracle_);
      Arithmetic points;
      runs.with(name, fused, points);
      Arithmetic arithmetic{.key_tile = key_tile};
      for (const RoundingPoint& point : points.points) {
        const bool named = std::find(changed.begin(), changed.end(), point.name) != changed.end();
        const bool all = !changed.empty() && changed.front() == "all" && point.eager;
        arithmetic.changed.push_back(named || all);
      }
      RoundingWay way;
      way.fused = fused;
      way.changed = arithmetic.changed;
      way.key_tile = key_tile;
      way.own_table = own_table;
      out[name] = runs.rounded_as(name, way);
    }
    return out;
  }

  CheckpointResult judged(const std::map<std::string, Tensor>& outputs,
                          std::optional<RoundingPoints> demanded = {}) {
    CheckpointResult result = external_result(recording_, checkpoint_);
    judge_external(recording_, checkpoint_, outputs, {demanded, false}, *oracle_, result);
    return result;
  }

  static std::string rounding(const CheckpointResult& result) {
    return result.outputs.front().rounding;
  }

 private:
  Recording recording_;
  std::unique_ptr<Device> oracle_;
  Checkpoint checkpoint_, wrong_;
};

constexpr const char* kLlama = "fixtures/llama-a1/decode-bf16";
constexpr const char* kGemma = "fixtures/gemma2-a4/decode-bf16";

}  // namespace

TEST_CASE("a norm that keeps float32 inside passes unless eager rounding is demanded", "[family]") {
  Kernel kernel(kLlama, "model.layers.0.input_layernorm#0");
  const auto outputs = kernel.outputs({"rms_norm.normalised"});
  const CheckpointResult result = kernel.judged(outputs);
  CHECK(result.status == Status::pass);
  CHECK(Kernel::rounding(result) == "rounds once, at the output");
  CHECK(kernel.judged(outputs, RoundingPoints::eager).status == Status::fail);
  CHECK(kernel.judged(outputs, RoundingPoints::fused).status == Status::pass);
  CHECK(kernel.judged(kernel.outputs({})).status == Status::pass);
  CHECK(kernel.judged(kernel.outputs({}), RoundingPoints::fused).status == Status::fail);
}

TEST_CASE("rotary with a table of its own in float32 passes, with another table fails",
          "[family]") {
  Kernel kernel(kLlama, "model.layers.0.self_attn:rotary#0");
  const CheckpointResult result = kernel.judged(kernel.outputs({"all"}, {}, true));
  CHECK(result.status == Status::pass);
  CHECK(Kernel::rounding(result) == "rounds once, at the output, cos and sin in float32");
  CHECK(Kernel::rounding(kernel.judged(kernel.outputs({"all"}))) == "rounds once, at the output");
  auto rotated = kernel.outputs({"all"}, {}, true);
  for (auto& [name, y] : rotated) {  // one 16-bit step up in every eighth element
    for (int64_t i = 0; i < y.numel(); i += 8) ++y.data<uint16_t>()[i];
  }
  CHECK(kernel.judged(rotated).status == Status::fail);
}

TEST_CASE("wrong kernels that keep float32 inside follow no rounding points", "[family]") {
  Kernel norm("fixtures/border-small/whole-bf16-llama", "eps_1e6_norm#0");
  CHECK(norm.judged(norm.outputs({"rms_norm.normalised"})).status == Status::pass);
  norm.params().set("eps", norm.params().number("eps") * 10);
  CHECK(norm.judged(norm.outputs({"rms_norm.normalised"})).status == Status::fail);

  Kernel cap(kGemma, "model.layers.0.self_attn:sdpa.softcap#0");
  cap.params().set("cap", cap.params().number("cap") * 29 / 30);
  CHECK(cap.judged(cap.outputs({"all"})).status == Status::fail);
}

TEST_CASE("a rotary without inner roundings passes", "[family]") {
  Kernel kernel(kLlama, "model.layers.0.self_attn:rotary#0");
  const CheckpointResult result =
      kernel.judged(kernel.outputs({"rotary.product_by_cos", "rotary.product_by_sin"}));
  CHECK(result.status == Status::pass);
  CHECK(Kernel::rounding(result) == "rounds once, at the output");
}

// What a fused multiply-add of 16-bit numbers gives.
TEST_CASE("a rotary that rounds one of its products passes", "[family]") {
  Kernel kernel("fixtures/llama-a1/whole-f16", "model.layers.0.self_attn:rotary#0");
  for (const char* product : {"rotary.product_by_cos", "rotary.product_by_sin"}) {
    CHECK(kernel.judged(kernel.outputs({product})).status == Status::pass);
  }
}

TEST_CASE("an MLP whose sigmoid is of exp(|x|) in 16 bits passes", "[family]") {
  Kernel kernel("fixtures/llama-a1/whole-f16", "model.layers.0.mlp#0");
  const CheckpointResult result =
      kernel.judged(kernel.outputs({"activation.parts", "activation.exponential"}));
  CHECK(result.status == Status::pass);
  CHECK(Kernel::rounding(result).find("exp(|x|)") != std::string::npos);
}

TEST_CASE("attention passes whether it rounds as eager code, once, or as flash attention does",
          "[family]") {
  Kernel kernel(kGemma, "model.layers.0.self_attn:sdpa#0");
  CHECK(kernel.judged(kernel.outputs({})).status == Status::pass);
  const CheckpointResult once = kernel.judged(kernel.outputs({"all"}));
  CHECK(once.status == Status::pass);
  CHECK(Kernel::rounding(once) == "rounds once, at the output");
  const CheckpointResult flash = kernel.judged(kernel.outputs({}, 16));
  CHECK(flash.status == Status::pass);
  CHECK(Kernel::rounding(flash).find("flash attention") != std::string::npos);
  CHECK(kernel.judged(kernel.outputs({}, 16), RoundingPoints::eager).status == Status::fail);
  const CheckpointResult partly = kernel.judged(kernel.outputs({"matmul", "softmax"}));
  CHECK(partly.status == Status::pass);
}

TEST_CASE("wrong attention fails whatever it rounds like", "[family]") {
  for (const auto& [name, factor] :
       std::map<std::string, double>{{"scale", 1.02}, {"softcap", 0.9}}) {
    Kernel kernel(kGemma, "model.layers.0.self_attn:sdpa#0");
    kernel.params().set(name, kernel.params().number(name) * factor);
    CAPTURE(name);
    CHECK(kernel.judged(kernel.outputs({})).status == Status::fail);
    CHECK(kernel.judged(kernel.outputs({"all"})).status == Status::fail);
    CHECK(kernel.judged(kernel.outputs({}, 16)).status == Status::fail);
  }
}

}  // namespace plumb::harness
