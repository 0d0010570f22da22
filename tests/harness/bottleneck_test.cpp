// Conformance behind a bottleneck: an adapter y = B (A x), whose r inner values are rounded. One of
// them that falls to the other side of a tie moves all outputs of its row together.
#include <functional>

#include "harness/judge/conformance.h"
#include "harness/recording/select.h"
#include "harness/replay/replay.h"
#include "tests/catch.h"
#include "tests/harness/judge_support.h"

namespace plumb::harness {
namespace {

using testing::Random;
using testing::rounded;

using Values = std::vector<double>;

constexpr DType kDtype = DType::f16;
constexpr size_t kIn = 256, kRank = 4, kOut = 64;

double f32(double x) { return static_cast<double>(static_cast<float>(x)); }

// [rows, n] x [columns, n]^T with float32 sums in that order, or exact ones.
Values product(const Values& x, const Values& weight, size_t n, bool exact) {
  const size_t rows = x.size() / n, columns = weight.size() / n;
  Values out;
  for (size_t t = 0; t < rows; ++t) {
    for (size_t c = 0; c < columns; ++c) {
      double sum = 0;
      for (size_t i = 0; i < n; ++i) {
        sum += x[t * n + i] * weight[c * n + i];
        if (!exact) sum = f32(sum);
      }
      out.push_back(sum);
    }
  }
  return out;
}

struct Adapter {
  Values x, down, up;

  Adapter(size_t rows, uint64_t seed) {
    Random random(seed);
    x = rounded(kDtype, random.normals(static_cast<int64_t>(rows * kIn)));
    down = rounded(kDtype, random.normals(kRank * kIn, 1 / std::sqrt(kIn)));
    up = rounded(kDtype, random.normals(kOut * kRank, 1 / std::sqrt(kRank)));
  }
  Values inner(bool exact) const { return product(x, down, kIn, exact); }
  Values outer(const Values& inner, bool exact) const {
    return rounded(kDtype, product(inner, up, kRank, exact));
  }
  Values model() const { return outer(rounded(kDtype, inner(true)), true); }
  Values kernel() const { return outer(rounded(kDtype, inner(false)), false); }
};

const Stage kDown{kIn, {}}, kUp{kRank, {}};

ConformanceRule rule_of(Rule rule) {
  rule.contract.storage = kDtype;
  rule.stages = {kDown, kUp};
  return conformance_rule(rule, floors(rule.contract, rule.stages, 0), kOut);
}

ConformanceRule rule_of_bottleneck() {
  Rule rule;
  rule.bottleneck = {kRank, kDown};
  return rule_of(rule);
}

// Flips taken as independent.
ConformanceRule rule_of_cascade() {
  Rule rule;
  rule.cascade_stages = {kDown};
  return rule_of(rule);
}

Conformance compared(const Values& y, const Values& model, const ConformanceRule& rule) {
  return conformance(y, model, std::vector<uint8_t>(y.size(), 1), rule);
}

}  // namespace

TEST_CASE("a flip behind a bottleneck turns over one row, which independent flips do not allow") {
  int turned = 0, refused_by_cascade = 0;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    const Adapter adapter(2, seed);
    const Values model = adapter.model(), y = adapter.kernel();
    const Conformance found = compared(y, model, rule_of_bottleneck());
    INFO("seed " << seed << ": " << found.differ << " differ, " << found.set_aside << " aside");
    CHECK(found.passed);
    turned += rounded(kDtype, adapter.inner(true)) != rounded(kDtype, adapter.inner(false));
    refused_by_cascade += !compared(y, model, rule_of_cascade()).passed;
  }
  CHECK(turned > 0);
  CHECK(turned < 1500 * 2 * kRank * 3 * accumulation_floor({kDown}) / 0x1p-11);
  CHECK(refused_by_cascade > 0);
}

TEST_CASE("an adapter that rounds elsewhere differs in every row") {
  constexpr size_t kRows = 24;  // of two, those that are not set aside may prove nothing
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Adapter adapter(kRows, seed);
    const Values model = adapter.model(), inner = adapter.inner(true);
    const auto passes = [&](const std::function<double(double)>& round) {
      Values wrong = inner;
      for (double& h : wrong) h = round(h);
      return compared(adapter.outer(wrong, true), model, rule_of_bottleneck()).passed;
    };
    INFO("seed " << seed);
    CHECK_FALSE(passes([](double h) { return h; }));
    CHECK_FALSE(passes([](double h) { return round_to(DType::bf16, h); }));
    CHECK_FALSE(passes([](double h) { return round_to(kDtype, h * 1.001); }));
  }
}

TEST_CASE("how many rows are set aside follows from the flips to expect") {
  ConformanceRule rule = rule_of_bottleneck();  // 4 x 3 x 0.3 sqrt(256) 2^-24 / 2^-11: 0.007 a row
  CHECK(rows_aside(rule, 1).rows == 1);
  CHECK(rows_aside(rule, 2).rows == 1);
  CHECK(rows_aside(rule, 24).rows == 3);
  CHECK(rows_aside(rule, 10000).rows == 104);
  CHECK(rows_aside(rule, 24).outputs == kOut);
  rule.bottleneck.width = 64;  // one of 64 values moves a quarter of the outputs
  CHECK(rows_aside(rule, 24).outputs == kOut / 4);
  rule.cascade = 1e-7;  // a further sum behind it
  CHECK(rows_aside(rule, 24).outputs == kOut);
  rule.bottleneck.width = 1000;  // flips in every row: the law of the square root
  CHECK(rows_aside(rule, 24).rows == 0);
  CHECK(rows_aside(rule_of_cascade(), 24).rows == 0);

  Rule wide;
  wide.bottleneck = {1000, kDown};
  CHECK(rule_of(wide).cascade == accumulation_floor({kDown}));
  CHECK(rule_of_bottleneck().cascade == 0);
}

TEST_CASE("one row proves nothing once it may be set aside") {
  const ConformanceRule rule = rule_of_bottleneck();
  CHECK_FALSE(conformance_applies(kDtype, kOut, rows_aside(rule, 1)));
  CHECK(conformance_applies(kDtype, 2 * kOut, rows_aside(rule, 2)));
}

TEST_CASE("a recorded adapter passes on a device whose sum meets a tie of the inner vector") {
  const Recording recording = Recording::open(default_fixtures() / "zamba2-a6/decode-f32");
  const auto device = open_device("emu:64", 1), oracle = open_device("oracle");
  ReplayOptions options;
  options.dtype = kDtype;
  Replayer replayer(recording, *device, *oracle, options);
  int64_t adapters = 0, aside = 0;
  for (const Checkpoint& checkpoint : recording.checkpoints()) {
    if (checkpoint.block != "low_rank_adapter") continue;
    const CheckpointResult result = replayer.run(checkpoint);
    INFO(checkpoint.id << ": " << result.reason);
    CHECK(result.status == Status::pass);
    ++adapters;
    for (const OutputVerdict& output : result.outputs) {
      if (output.conformance) aside += output.conformance->set_aside;
    }
  }
  CHECK(adapters == 36);
  CHECK(aside > 0);
}

}  // namespace plumb::harness
