// Results arrive from a worker process as they were sent, to the last bit.
#include "harness/replay/result_json.h"

#include <bit>
#include <cstring>
#include <random>

#include "harness/report/results_json.h"
#include "kernels/core/error.h"
#include "tests/catch.h"
#include "tests/harness/sample_results.h"

namespace plumb::harness {
namespace {

// Every member set, with numbers and texts that are easily lost on the way.
Replayed full() {
  Replayed out{hostile(failing()), {}};
  CheckpointResult& result = out.result;
  result.step = INT64_MIN;
  result.determinism = Determinism::d1;
  result.runs = 9;
  result.margins = {{"window one key longer", kInf}, {kHostile, 0.25}};
  result.seconds = std::bit_cast<double>(0x7ff8000000000123);  // a NaN with a payload
  OutputVerdict& output = result.outputs[0];
  output.statistics = {5e-324, {{"token", -0.0, kInf, 7, kNan, 1.5}}, 1.0 / 3, 12, -kInf};
  output.reference = {0.1, {{"tile", 1, 2, 3, 4, 5}}, 0.2, 13, 0.3};
  output.recorded_error = -0.0;
  output.classes.y = {1, 2, 3, 4};
  output.classes.reference = {5, 6, 7, 8};
  output.classes.rounded = {9, 10, 11, 12};
  output.classes.wrong = 13;
  output.classes.first_wrong = 14;
  output.classes.padded_wrong = 15;
  output.classes.first_padded_wrong = 16;
  output.classes.range_hazards = 17;
  output.classes.unknown_oracle = 18;
  output.classes.outcomes = {ClassOutcome::skip};
  output.floors = {1e-5, 2e-5, 3e-5, 1.5};
  output.details = {{{"max_abs", kNan, 3}}, {5, 0, 1}, {6, 2}, {{"token", "token 7", 0.5}}};
  output.conformance = Conformance{100, 40, 0, 2, 0.01, 8, true};
  result.outputs.push_back(OutputVerdict{});
  const Tensor t = host_tensor(DType::bf16, {2, 3});
  for (int i = 0; i < 6; ++i) t.data<uint16_t>()[i] = static_cast<uint16_t>(0x7fc0 + i);
  out.outputs = {{"empty", host_tensor(DType::f32, {0, 4})}, {"out", t}};
  return out;
}

}  // namespace

TEST_CASE("a result comes back with every member as it was") {
  const Replayed sent = full();
  const std::string bytes = packed(sent);
  const Replayed back = unpacked(bytes);
  CHECK(checkpoint_json(back.result) == checkpoint_json(sent.result));
  CHECK(packed(back) == bytes);
  CHECK(std::bit_cast<uint64_t>(back.result.seconds) == 0x7ff8000000000123);
  const OutputVerdict& output = back.result.outputs.at(0);
  CHECK(std::signbit(output.recorded_error));
  CHECK(std::signbit(output.statistics.families.at(0).value));
  CHECK(output.statistics.tensor == 5e-324);
  CHECK(output.classes.outcomes.empty());  // the judge's own
  CHECK(output.floors.roundings == 1.5);
  CHECK(output.gates.at(1).derivation.at(0).name == "c");
  CHECK_FALSE(back.result.outputs.at(1).where);
  CHECK(back.outputs.at("empty").shape() == Shape({0, 4}));
  const Tensor& t = back.outputs.at("out");
  REQUIRE((t.dtype() == DType::bf16 && t.shape() == Shape({2, 3})));
  CHECK(std::memcmp(t.raw(), sent.outputs.at("out").raw(), 12) == 0);
}

TEST_CASE("what is received outlives the bytes it came in") {
  std::string bytes = packed(full());
  const Replayed back = unpacked(bytes);
  std::fill(bytes.begin(), bytes.end(), 'x');
  CHECK(back.result.outputs[0].statistics.families[0].family == "token");
}

TEST_CASE("a result that is cut short or too long is refused") {
  const std::string bytes = packed(full());
  for (size_t n = 0; n < bytes.size(); ++n) {
    CHECK_THROWS_AS(unpacked(std::string_view(bytes).substr(0, n)), Error);
  }
  CHECK_THROWS_AS(unpacked(bytes + '\0'), Error);
}

TEST_CASE("hostile bytes are refused or read, whatever they are") {
  const std::string bytes = packed(full());
  std::mt19937_64 random(1);
  int refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string damaged = bytes;
    for (uint64_t n = 1 + random() % 3; n > 0; --n) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    try {
      checkpoint_json(unpacked(damaged).result);
    } catch (const Error&) {
      ++refused;
    }
  }
  CHECK(refused > 2'000);
  CHECK(refused < 20'000);
}

TEST_CASE("a status that there is not is refused") {
  std::string bytes = packed(full());
  REQUIRE(bytes[0] == static_cast<char>(Status::fail));
  for (int i = 0; i < 256; ++i) {
    bytes[0] = static_cast<char>(i);
    if (i < kStatusCount) CHECK(unpacked(bytes).result.status == static_cast<Status>(i));
    else CHECK_THROWS_AS(unpacked(bytes), Error);
  }
}

}  // namespace plumb::harness
