// Devices compared: with a fault planted in one, some or all of them, the right ones are named.
#include "harness/run/compare.h"

#include <cmath>

#include "harness/report/compare_report.h"
#include "harness/report/results_json.h"
#include "kernels/core/error.h"
#include "tests/catch.h"
#include "tests/faults/kills.h"

namespace plumb::harness::testing {
namespace {

Case first_case(const std::string& block, DType dtype) {
  for (const Case& c : suite().cases(block)) {
    if (c.recording->dtype() == dtype && suite().right(c).status == Status::pass) return c;
  }
  FAIL("no passing " << block);
  return {};
}

Hooks scaled_norm(double factor) {
  return {.rms_norm = [factor](Call& c, auto& out, auto& x, auto& w, auto& p) {
    c.ops.rms_norm(out, x, w, p);
    for (int64_t i = 0; i < out.numel(); ++i) {
      char* at = out.template data<char>() + i * size_of(out.dtype());
      store(out.dtype(), at, factor * load(out.dtype(), at));
    }
  }};
}

const Hooks kRight = {};

Replayed replayed(const Case& c, const std::string& name, const Hooks& hooks) {
  FaultyDevice device(suite().device(), hooks);
  const auto oracle = open_device("oracle");
  Replayed out = Replayer(*c.recording, device, *oracle, {}).run_and_keep(*c.checkpoint);
  const size_t at = out.result.again.rfind(out.result.device);
  if (at != std::string::npos) out.result.again.replace(at, out.result.device.size(), name);
  out.result.device = name;
  return out;
}

// Devices a, b, c, ... with these hooks.
Comparison compared(const Case& c, const std::vector<Hooks>& hooks) {
  std::vector<Replayed> all;
  for (size_t i = 0; i < hooks.size(); ++i) {
    all.push_back(replayed(c, std::string(1, static_cast<char>('a' + i)), hooks[i]));
  }
  return compare(*c.recording, *c.checkpoint, std::move(all));
}

Comparison norms(const std::vector<Hooks>& hooks, DType dtype = DType::f32) {
  return compared(first_case("rms_norm", dtype), hooks);
}

using Devices = std::vector<size_t>;

}  // namespace

TEST_CASE("devices that are right agree, to the bit where they are the same") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Comparison c = norms({kRight, kRight, kRight}, dtype);
    CHECK(c.finding == Finding::agree);
    CHECK(c.look_at.empty());
    REQUIRE(c.pairs.size() == 3);
    for (const Pair& pair : c.pairs) {
      CHECK(pair.agree);
      CHECK(pair.same_contract);
      CHECK(pair.elements > 0);
      CHECK(pair.equal_bits == pair.elements);
    }
  }
}

TEST_CASE("the one device that is wrong is named, wherever it is") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (size_t wrong = 0; wrong < 3; ++wrong) {
      std::vector<Hooks> hooks(3);
      hooks[wrong] = scaled_norm(1.1);
      const Comparison c = norms(hooks, dtype);
      CHECK(c.finding == Finding::alone);
      CHECK(c.look_at == Devices{wrong});
      for (const Pair& pair : c.pairs) {
        const bool touched = pair.a == wrong || pair.b == wrong;
        CHECK(pair.agree != touched);
        CHECK((pair.equal_bits < pair.elements) == touched);
      }
    }
  }
  CHECK(norms({kRight, kRight, scaled_norm(1.1)}).words ==
        "c differs from a and b, which agree: look at c");
}

TEST_CASE("of two devices the recording decides") {
  const Comparison c = norms({scaled_norm(0.9), kRight});
  CHECK(c.finding == Finding::alone);
  CHECK(c.look_at == Devices{0});
  CHECK(c.words == "a differs from the recording, with which b agrees: look at a");
}

TEST_CASE("devices that are wrong in the same way make the recording suspect") {
  const Comparison c = norms({scaled_norm(1.1), scaled_norm(1.1), scaled_norm(1.1)});
  CHECK(c.finding == Finding::suspect);
  CHECK(c.words ==
        "a, b and c agree with each other and not with the recording: look at the recording, or "
        "at what they share");
}

TEST_CASE("a majority against the recording is not believed") {
  const Comparison c = norms({scaled_norm(1.1), kRight, scaled_norm(1.1)});
  CHECK(c.finding == Finding::split);
  CHECK(c.look_at == Devices{0, 2});
  CHECK(
      c.words ==
      "only b agrees with the recording; a and c agree with each other: look at what these share");
}

TEST_CASE("without a majority every wrong device is named") {
  const Comparison c = norms({scaled_norm(1.1), scaled_norm(0.9), kRight});
  CHECK(c.finding == Finding::split);
  CHECK(c.look_at == Devices{0, 1});
}

TEST_CASE("a NaN in one device is a difference") {
  const Comparison c = norms({kRight, kRight, scaled_norm(std::nan(""))});
  CHECK(c.finding == Finding::alone);
  CHECK(c.look_at == Devices{2});
}

TEST_CASE("a device without a result is left out, and its status stays") {
  const Hooks failing = {
      .rms_norm = [](Call&, auto&, auto&, auto&, auto&) { throw DeviceError("lost"); }};
  const Comparison two = norms({kRight, failing});
  CHECK(two.finding == Finding::not_compared);
  CHECK(two.results.at(1).status == Status::device_error);
  const Comparison three = norms({kRight, failing, scaled_norm(1.1)});
  CHECK(three.look_at == Devices{2});
  CHECK(three.words == "c differs from the recording, with which a agrees: look at c");
}

TEST_CASE("blocks that copy are compared bit by bit, with the float64 oracle too") {
  const Case copy = first_case("repeat_kv", DType::bf16);
  const Hooks wrong = {.repeat_heads = [](Call& c, auto& out, auto& x) {
    c.ops.repeat_heads(out, x);
    out.template data<uint16_t>()[0] ^= 1;
  }};
  const Comparison c = compared(copy, {kRight, kRight, wrong});
  CHECK(c.look_at == Devices{2});
  CHECK(c.pairs.at(1).worst.name == "bits");
  CHECK(c.pairs.at(1).worst.statistic == 1);

  const auto oracle = open_device("oracle");
  for (const char* block : {"embedding", "rms_norm", "sdpa"}) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      const Case any = first_case(block, dtype);
      std::vector<Replayed> all = {replayed(any, "a", kRight)};
      all.push_back(Replayer(*any.recording, *oracle, *oracle, {}).run_and_keep(*any.checkpoint));
      const Comparison with_oracle = compare(*any.recording, *any.checkpoint, std::move(all));
      CHECK(with_oracle.finding == Finding::agree);
      CHECK_FALSE(with_oracle.pairs.at(0).same_contract);
    }
  }
}

TEST_CASE("the table counts the device that differs, and the text names it") {
  const std::vector<Comparison> all = {norms({kRight, kRight, kRight}),
                                       norms({kRight, scaled_norm(1.1), kRight})};
  const std::string report = comparison_text(all, {"a", "b", "c"});
  CHECK(report.find("alone  rms_norm f32, 1 of 2 checkpoints: b differs from a and c, which agree: "
                    "look at b\n") != std::string::npos);
  CHECK(report.find("bits equal in 100.00 %") != std::string::npos);
  CHECK(report.find("--device a,b,c\n") != std::string::npos);
  const std::string json = comparison_json(all[1]);
  CHECK(json.starts_with(R"({"type":"comparison","finding":"alone","look_at":["b"],)"));
  CHECK(json.find(R"({"devices":["a","b"],"agree":false,)") != std::string::npos);
}

}  // namespace plumb::harness::testing
