#include "harness/judge/limits.h"

#include <limits>

#include "tests/catch.h"
#include "tests/harness/judge_support.h"

namespace plumb::harness {
namespace {

using testing::gate;
using testing::Random;

Contract contract_of(DType storage) {
  Contract c;
  c.storage = c.multiply = storage;
  return c;
}

// 16 tokens x 32 channels of normal values: token groups of 32, channel groups of 16, tiles of 64.
ReferenceScales scales_of(DType storage, const Shape& shape = {16, 32}) {
  Random random(7);
  const Layout layout = layout_of(shape, {"token", "channel"});
  return reference_scales(layout, random.normals(shape.numel()),
                          std::vector<uint8_t>(static_cast<size_t>(shape.numel()), 1), storage);
}

// Statistics of nothing wrong, for every family of the scales.
Statistics none(const ReferenceScales& scales) {
  return statistics(scales.o, scales, std::vector<uint8_t>(scales.o.size(), 0));
}

double term(const Gate& g, std::string_view name) {
  for (const Term& t : g.derivation) {
    if (t.name == name) return t.value;
  }
  FAIL("no term " << name);
  return 0;
}

double step(double x, int ulps) {
  const double toward = ulps > 0 ? std::numeric_limits<double>::infinity() : 0;
  for (int i = 0; i < std::abs(ulps); ++i) x = std::nextafter(x, toward);
  return x;
}

}  // namespace

TEST_CASE("floors follow the contract", "[limits]") {
  const double u = 0x1p-24;
  SECTION("no sum: one rounding") {
    const Floors f = floors(contract_of(DType::bf16), {}, 0);
    CHECK(f.accumulation == 0);
    CHECK(f.norm == Approx(0.43 / 256));
    CHECK(f.element == Approx(1.0 / 256));
  }
  SECTION("sums to nearest grow with the root of n") {
    const Floors f = floors(contract_of(DType::f32), {{1024, {}}, {256, {}}}, 0);
    CHECK(f.accumulation == Approx(0.3 * (32 + 16) * u));
    CHECK(f.norm == Approx(0.43 * u + f.accumulation));
    CHECK(f.element == Approx(u + 4 * f.accumulation));
  }
  SECTION("truncating sums grow with n") {
    const Stage stage{4096, {24, SumRounding::toward_zero, 16}};
    CHECK(floors(contract_of(DType::bf16), {stage}, 0).accumulation == Approx(0.5 * 256 * u));
  }
  SECTION("narrow accumulators count more") {
    CHECK(accumulation_floor({{100, {14, SumRounding::nearest, 1}}}) == Approx(3 * 0x1p-14));
  }
  SECTION("the exponent of an attention score") {
    CHECK(floors(contract_of(DType::f16), {}, 50).accumulation == Approx(50 * u));
  }
}

TEST_CASE("small samples widen the limit", "[limits]") {
  CHECK(kappa(1, 1) == 4);
  CHECK(kappa(9, 1) == 2);
  CHECK(kappa(64, 100) == Approx(1 + 3 / std::sqrt(64 * (1 + 2 * std::log(100)))));
  CHECK(kappa(1, 10000) == Approx(1.681).epsilon(1e-3));
  CHECK(kappa(0, 0) == 4);
}

TEST_CASE("a gate passes at its limit and fails beyond it and for NaN", "[limits]") {
  CHECK(make_gate("g", 1, 1).passed);
  CHECK_FALSE(make_gate("g", step(1, 1), 1).passed);
  CHECK_FALSE(make_gate("g", kNan, 1).passed);
  CHECK_FALSE(make_gate("g", 1, kNan).passed);
  CHECK(make_gate("g", 0, 0).passed);
}

TEST_CASE("limits of the ratio gates by hand", "[limits]") {
  const auto [storage, c] = GENERATE(table<DType, double>(
      {{DType::bf16, 2.0}, {DType::f16, 2.0}, {DType::f8_e4m3, 2.0}, {DType::f32, 4.0}}));
  const ReferenceScales scales = scales_of(storage);
  const Floors f = floors(contract_of(storage), {{64, {}}}, 0);
  Statistics reference = none(scales);
  SECTION("from the floor") {
    const auto gates = statistic_gates(none(scales), reference, scales, f);
    REQUIRE(gates.size() == 6);
    CHECK(gate(gates, "tensor").limit == Approx(c * kappa(512, 1) * f.norm));
    CHECK(gate(gates, "token").limit == Approx(c * kappa(32, 16) * f.norm));
    CHECK(gate(gates, "channel").limit == Approx(c * kappa(16, 32) * f.norm));
    CHECK(gate(gates, "tile").limit == Approx(c * kappa(64, 8) * f.norm));
    CHECK(gate(gates, "element").limit == Approx(c * kappa(1, 512) * f.element));
    const double k = storage == DType::f32 ? 2 : 0.5;  // 2 / sqrt(16)
    CHECK(gate(gates, "gain").limit == Approx(k * f.norm));
  }
  SECTION("from the reference") {
    reference.tensor = 0.5;
    reference.element = 0.75;
    reference.gain = -0.25;
    for (GroupStatistic& family : reference.families) family.value = 0.625;
    const auto gates = statistic_gates(none(scales), reference, scales, f);
    CHECK(gate(gates, "tensor").limit == Approx(c * kappa(512, 1) * 0.5));
    CHECK(gate(gates, "token").limit == Approx(c * kappa(32, 16) * 0.625));
    CHECK(gate(gates, "element").limit == Approx(c * kappa(1, 512) * 0.75));
    CHECK(gate(gates, "gain").limit == Approx(1));  // 4 |g(r)|
    for (const Gate& g : gates) {
      if (g.name == "gain") continue;
      CHECK(g.limit == Approx(term(g, "c") * term(g, "kappa") * term(g, "reference")));
      CHECK(term(g, "floor") == (g.name == "element" ? f.element : f.norm));
    }
    reference.gain = 0;
    const double k = storage == DType::f32 ? 2 : 0.5;
    CHECK(gate(statistic_gates(none(scales), reference, scales, f), "gain").limit ==
          Approx(k * 0.5));
  }
}

TEST_CASE("the gain's limit tightens with the rows, to a quarter", "[limits]") {
  const Floors f = floors(contract_of(DType::bf16), {}, 0);
  const auto limit = [&](int64_t rows) {
    const ReferenceScales scales = scales_of(DType::bf16, {rows, 16});
    return gate(statistic_gates(none(scales), none(scales), scales, f), "gain").limit / f.norm;
  };
  CHECK(limit(1) == Approx(2 * kappa(16, 1)));  // 16 elements: no more than the tensor's own limit
  CHECK(limit(4) == Approx(1));
  CHECK(limit(64) == Approx(0.25));
  CHECK(limit(256) == Approx(0.25));
}

TEST_CASE("a constant oracle has no gain gate", "[limits]") {
  const Layout layout = layout_of({8, 8}, {"token", "channel"});
  const ReferenceScales scales = reference_scales(layout, std::vector<double>(64, 3),
                                                  std::vector<uint8_t>(64, 1), DType::bf16);
  for (const Gate& g : statistic_gates(none(scales), none(scales), scales, {}))
    CHECK(g.name != "gain");
}

TEST_CASE("every gate turns within 4 ulp of its limit", "[limits]") {
  const DType storage = GENERATE(DType::bf16, DType::f32);
  const ReferenceScales scales = scales_of(storage);
  const Floors f = floors(contract_of(storage), {{64, {}}}, 0);
  const Statistics reference = none(scales);
  const auto judged = [&](int ulps, int which) {
    Statistics y = none(scales);
    const auto gates = statistic_gates(y, reference, scales, f);
    const double at = step(gates[static_cast<size_t>(which)].limit, ulps);
    if (which == 0) y.tensor = at;
    if (which >= 1 && which <= 3) {
      GroupStatistic& family = y.families[static_cast<size_t>(which - 1)];
      family.value = family.worst_value = at;
    }
    if (which == 4) y.element = at;
    if (which == 5) y.gain = -at;
    const auto after = statistic_gates(y, reference, scales, f);
    for (size_t i = 0; i < after.size(); ++i) {  // no other gate cares
      if (static_cast<int>(i) != which) CHECK(after[i].passed);
    }
    return after[static_cast<size_t>(which)].passed;
  };
  for (int which = 0; which < 6; ++which) {
    CHECK(judged(-4, which));
    CHECK(judged(0, which));
    CHECK_FALSE(judged(4, which));
  }
}

TEST_CASE("groups of different sizes are compared by v / kappa", "[limits]") {
  // 12 tokens x 20 channels: tiles of 64, 32 and, at the border, 32 and 16 elements.
  const ReferenceScales scales = scales_of(DType::bf16, {12, 20});
  const FamilyScales& tiles = scales.families[2];
  REQUIRE(tiles.partition.name == "tile");
  CHECK_FALSE(tiles.uniform);
  CHECK(scales.families[0].uniform);
  CHECK(tiles.sizes == std::vector<int64_t>{64, 64, 32, 32, 32, 16});
  CHECK(tiles.kappas[5] == Approx(kappa(16, 6)));
  // The smallest tile is worst in v, a large one in v / kappa.
  std::vector<double> y = scales.o;
  const double v_large = 1.00, v_small = 1.05;
  y[0] += v_large * tiles.scales[0] * 8;
  y[11 * 20 + 19] += v_small * tiles.scales[5] * 4;
  const Statistics s = statistics(y, scales, std::vector<uint8_t>(y.size(), 0));
  CHECK(s.families[2].value == Approx(v_small));
  CHECK(s.families[2].worst == 0);
  CHECK(s.families[2].worst_value == Approx(v_large));
  const Floors f = floors(contract_of(DType::bf16), {}, 0);
  Statistics reference = none(scales);
  const Gate by_floor = gate(statistic_gates(s, reference, scales, f), "tile");
  CHECK(by_floor.statistic == Approx(v_large));
  CHECK(by_floor.limit == Approx(2 * kappa(64, 6) * f.norm));
  CHECK(by_floor.where == "token 0..7, channel 0..7");
  reference.families[2].normalised = 0.75;
  const Gate by_reference = gate(statistic_gates(s, reference, scales, f), "tile");
  CHECK(by_reference.limit == Approx(2 * kappa(64, 6) * 0.75));
}

TEST_CASE("a family without a group of eight has no gate", "[limits]") {
  const ReferenceScales scales = scales_of(DType::bf16, {3, 16});
  for (const Gate& g : statistic_gates(none(scales), none(scales), scales, {})) {
    CHECK(g.name != "channel");
  }
}

}  // namespace plumb::harness
