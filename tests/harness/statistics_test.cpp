#include "harness/judge/statistics.h"

#include "harness/judge/details.h"
#include "harness/judge/distribution.h"
#include "harness/judge/limits.h"
#include "kernels/core/error.h"
#include "tests/catch.h"
#include "tests/harness/judge_support.h"

namespace plumb::harness {
namespace {

using testing::Random;
using testing::tensor_of;

struct Case {
  ReferenceScales scales;
  std::vector<double> y;
  Statistics result() const { return statistics(y, scales, std::vector<uint8_t>(y.size(), 0)); }
  Details informative() const {
    const std::vector<uint8_t> none(y.size(), 0);
    FamilyErrors errors;
    statistics(y, scales, none, &errors);
    return details(y, scales, none, errors);
  }
};

Case make(const Shape& shape, const std::vector<std::string>& axes, const std::vector<double>& o,
          std::vector<uint8_t> valid = {}, DType storage = DType::f32) {
  const Layout layout = layout_of(shape, axes);
  if (valid.empty()) valid.assign(o.size(), 1);
  return {reference_scales(layout, o, valid, storage), o};
}

const GroupStatistic& family(const Statistics& s, std::string_view name) {
  for (const GroupStatistic& f : s.families) {
    if (f.family == name) return f;
  }
  FAIL("no family " << name);
  return s.families.front();
}

double value_of(const Details& d, std::string_view name) {
  for (const NamedValue& v : d.values) {
    if (v.name == name) return v.value;
  }
  FAIL("no statistic " << name);
  return 0;
}

// Row 0 is 1, row 1 is 2; one element of row 0 is wrong by 0.5.
Case two_rows() {
  std::vector<double> o(8, 1);
  o.resize(16, 2);
  Case c = make({2, 8}, {"token", "channel"}, o);
  c.y[3] = 1.5;
  return c;
}

}  // namespace

TEST_CASE("decisive statistics of two rows by hand", "[statistics]") {
  const Statistics s = two_rows().result();
  CHECK(s.tensor == Approx(std::sqrt(0.25 / 40)));
  CHECK(s.gain == Approx(0.5 / 40));
  CHECK(s.element == Approx(0.5 / (1 / 0.6745)));
  CHECK(s.element_at == 3);
  REQUIRE(s.families.size() == 3);
  const GroupStatistic& token = family(s, "token");
  CHECK(token.value == Approx(std::sqrt(0.25 / 8)));  // RMS of row 0 is 1
  CHECK(token.worst == 0);
  CHECK(token.worst_kappa == Approx(1 + 3 / std::sqrt(8 * (1 + 2 * std::log(2)))));
  CHECK(token.normalised == Approx(token.value / token.worst_kappa));
  CHECK(family(s, "tile").value == Approx(std::sqrt(0.25 / 16) / std::sqrt(40.0 / 16)));
  CHECK(family(s, "channel").value == 0);  // groups of two are left out
}

TEST_CASE("y is compared with o, not o with y", "[statistics]") {
  Case c = two_rows();
  c.y[3] = 0.5;
  CHECK(c.result().gain == Approx(-0.5 / 40));
  c.y[3] = 3;  // sum d^2 is over sum o^2, not over sum y^2
  CHECK(c.result().tensor == Approx(std::sqrt(4.0 / 40)));
}

TEST_CASE("families follow axis names, not positions", "[statistics]") {
  // o is 1 everywhere; the error sits in batch 1, head 2, token 3, all of head_dim.
  const Shape shape{2, 4, 9, 8};
  std::vector<double> o(2 * 4 * 9 * 8, 1);
  Case c = make(shape, {"batch", "head", "token", "head_dim"}, o);
  // Positions are of the [rows, columns] matrix: row = batch * 9 + token, column = head * 8 +
  // head_dim.
  for (int d = 0; d < 8; ++d) c.y[static_cast<size_t>((1 * 9 + 3) * 32 + 2 * 8 + d)] = 2;
  const Statistics s = c.result();
  CHECK(family(s, "token x head").value == Approx(1));
  CHECK(family(s, "token").value == Approx(std::sqrt(8.0 / 32)));
  CHECK(family(s, "channel").value == Approx(std::sqrt(1.0 / 18)));
  const auto name = [&](std::string_view wanted) {
    for (const FamilyScales& f : c.scales.families) {
      if (f.partition.name == wanted) {
        return group_name(c.scales.layout, f.partition, family(s, wanted).worst);
      }
    }
    return std::string();
  };
  CHECK(name("token") == "batch 1, token 3");
  CHECK(name("token x head") == "batch 1, token 3, head 2");
  CHECK(name("channel") == "head 2, head_dim 0");
  CHECK(name("tile") == "batch 1, token 0..7, head 2, head_dim 0..7");
  CHECK(element_name(c.scales.layout, s.element_at) == "batch 1, token 3, head 2, head_dim 0");
}

TEST_CASE("the order of axes in memory changes nothing but the names", "[statistics]") {
  Random random(1);
  const std::vector<double> o = random.normals(9 * 4 * 8), noise = random.normals(9 * 4 * 8, 1e-3);
  std::vector<double> y = o;
  for (size_t i = 0; i < y.size(); ++i) y[i] += noise[i];
  std::vector<double> o_heads_first(o.size()), y_heads_first(o.size());
  for (size_t t = 0; t < 9; ++t) {
    for (size_t h = 0; h < 4; ++h) {
      for (size_t d = 0; d < 8; ++d) {
        o_heads_first[(h * 9 + t) * 8 + d] = o[(t * 4 + h) * 8 + d];
        y_heads_first[(h * 9 + t) * 8 + d] = y[(t * 4 + h) * 8 + d];
      }
    }
  }
  const auto run = [](const Shape& shape, const std::vector<std::string>& axes,
                      const std::vector<double>& oracle, const std::vector<double>& values) {
    const Layout layout = layout_of(shape, axes);
    const auto at = [&](const std::vector<double>& v) {
      return to_matrix(tensor_of(DType::f64, shape, v), layout);
    };
    const auto scales =
        reference_scales(layout, at(oracle), std::vector<uint8_t>(oracle.size(), 1), DType::f32);
    return statistics(at(values), scales, std::vector<uint8_t>(oracle.size(), 0));
  };
  const Statistics a = run({9, 4, 8}, {"token", "head", "head_dim"}, o, y);
  const Statistics b = run({4, 9, 8}, {"head", "token", "head_dim"}, o_heads_first, y_heads_first);
  CHECK(a.tensor == b.tensor);
  CHECK(a.element == b.element);
  CHECK(a.gain == b.gain);
  for (size_t f = 0; f < a.families.size(); ++f) {
    CHECK(a.families[f].value == b.families[f].value);
    CHECK(a.families[f].worst == b.families[f].worst);
  }
}

TEST_CASE("a quiet group is measured in 2^-10 of the median group", "[statistics]") {
  std::vector<double> o(24, 1);
  std::fill(o.begin(), o.begin() + 8, 1e-9);
  Case c = make({3, 8}, {"token", "channel"}, o);
  c.y[0] += 1e-6;
  const Statistics s = c.result();
  CHECK(family(s, "token").value == Approx(std::sqrt(1e-12 / 8) * 1024).epsilon(1e-6));
  CHECK(s.element == Approx(1e-6 / (1 / 0.6745) * 1024).epsilon(1e-6));
}

TEST_CASE("a massive element does not loosen its row", "[statistics]") {
  std::vector<double> o(16, 1);
  o[0] = 600;
  Case c = make({1, 16}, {"token", "channel"}, o);
  c.y[1] = 1.01;
  CHECK(c.result().element == Approx(0.01 * 0.6745).epsilon(1e-9));
}

TEST_CASE("only valid elements count", "[statistics]") {
  std::vector<uint8_t> valid(16, 1);
  std::fill(valid.begin(), valid.begin() + 8, 0);
  std::vector<double> o(16, 1);
  Case c = make({2, 8}, {"token", "channel"}, o, valid);
  c.y[3] = 100;
  CHECK(c.result().tensor == 0);
  CHECK(c.result().element == 0);
  CHECK(c.scales.n == 8);
  CHECK(c.scales.valid_rows == 1);
  CHECK(c.scales.families[0].counted == 1);
  c.y[8] = 2;
  CHECK(c.result().tensor == Approx(std::sqrt(1.0 / 8)));
  CHECK(value_of(c.informative(), "max_abs") == 1);
}

TEST_CASE("a valid mask is broadcast by axis names", "[statistics]") {
  const Layout layout = layout_of({2, 3, 4}, {"batch", "head", "token"});
  const Tensor mask = tensor_of(DType::boolean, {2, 4}, {0, 1, 1, 1, 1, 1, 1, 0});
  const std::vector<uint8_t> valid = to_mask(mask, {"batch", "token"}, layout);
  REQUIRE(valid.size() == 24);  // rows are (batch, token), columns heads
  for (size_t i = 0; i < valid.size(); ++i) CHECK(valid[i] == (i / 3 != 0 && i / 3 != 7));
  CHECK_THROWS_AS(to_mask(mask, {"batch", "channel"}, layout), BadInput);
  CHECK_THROWS_AS(to_mask(mask, {"token", "batch"}, layout), BadInput);
  CHECK_THROWS_AS(to_mask(mask, {"batch"}, layout), BadInput);
  CHECK_THROWS_AS(layout_of({2, 3}, {"token"}), BadInput);
}

TEST_CASE("families whose axis is missing are left out", "[statistics]") {
  const auto names = [](const Shape& shape, const std::vector<std::string>& axes) {
    std::string out;
    for (const Partition& p : error_families(layout_of(shape, axes)))
      out += std::string(p.name) + ";";
    return out;
  };
  CHECK(names({2, 3, 4}, {"batch", "token", "channel"}) == "token;channel;tile;");
  CHECK(names({2, 3, 4}, {"batch", "kv_head", "kv_token"}) == "token;token x head;channel;tile;");
  CHECK(names({16}, {"head_dim"}) == "channel;");
  CHECK(names({3}, {"token"}) == "token;");
  CHECK(names({}, {}) == "");
  // With both, the row is the query token and keys are columns.
  CHECK(layout_of({2, 3, 4, 5}, {"batch", "head", "token", "kv_token"}).columns == 15);
}

TEST_CASE("tiles do not straddle batch entries", "[statistics]") {
  std::vector<double> o(2 * 5 * 16, 1);
  Case c = make({2, 5, 16}, {"batch", "token", "channel"}, o);
  REQUIRE(c.scales.families[2].partition.groups == 4);
  CHECK(c.scales.families[2].sizes == std::vector<int64_t>{40, 40, 40, 40});
  c.y[5 * 16 + 9] = 2;  // batch 1, token 0, channel 9
  CHECK(family(c.result(), "tile").worst == 3);
}

TEST_CASE("zero, empty and single outputs", "[statistics]") {
  Case zero = make({8}, {"channel"}, std::vector<double>(8, 0));
  CHECK(zero.result().tensor == 0);
  CHECK(zero.result().element == 0);
  zero.y[2] = 0x1p-149;  // a step of denormals, of which errors are never more than that
  CHECK(zero.result().element == 0x1p-23);
  zero.y[2] = 1;
  CHECK(zero.result().tensor > 0x1p120);
  Case empty = make({0, 4}, {"token", "channel"}, {});
  CHECK(empty.result().tensor == 0);
  CHECK(empty.informative().values.size() > 10);
  Case one = make({}, {}, {2});
  one.y[0] = 3;
  CHECK(one.result().tensor == 0.5);
  CHECK(one.result().gain == 0.5);
}

TEST_CASE("NaN reaches every statistic that sees it", "[statistics]") {
  Random random(2);
  const double bad = GENERATE(kNan, kInf);
  Case c = make({9, 4, 8}, {"token", "head", "head_dim"}, random.normals(9 * 4 * 8));
  c.y[200] = bad;
  const Statistics s = c.result();
  CHECK_FALSE(s.tensor <= 1e300);
  CHECK_FALSE(s.element <= 1e300);
  CHECK_FALSE(std::fabs(s.gain) <= 1e300);
  for (const GroupStatistic& f : s.families) {
    CHECK_FALSE(f.value <= 1e300);
    CHECK_FALSE(f.worst_value <= 1e300);
  }
}

TEST_CASE("skipped elements are not seen", "[statistics]") {
  Case c = two_rows();
  c.y[5] = kInf;
  std::vector<uint8_t> skipped(16, 0);
  skipped[5] = 1;
  const Statistics s = statistics(c.y, c.scales, skipped);
  CHECK(s.tensor == Approx(std::sqrt(0.25 / 40)));
  CHECK(s.element == Approx(0.5 * 0.6745));
  CHECK(not_finite({1, kInf, kNan}) == std::vector<uint8_t>{0, 1, 1});
}

TEST_CASE("statistics grow with any error and are free of units", "[statistics]") {
  const uint64_t seed = GENERATE(range(1, 9));
  Random random(seed);
  const std::vector<double> o = random.normals(20 * 3 * 8),
                            noise = random.normals(20 * 3 * 8, 1e-3);
  Case c = make({20, 3, 8}, {"token", "head", "head_dim"}, o);
  for (size_t i = 0; i < o.size(); ++i) c.y[i] += noise[i];
  const Statistics before = c.result();

  SECTION("scaling by a power of two changes nothing") {
    const double factor = std::ldexp(1.0, static_cast<int>(seed) * 7 - 30);
    std::vector<double> scaled = o;
    for (double& x : scaled) x *= factor;
    Case other = make({20, 3, 8}, {"token", "head", "head_dim"}, scaled);
    for (size_t i = 0; i < o.size(); ++i) other.y[i] = c.y[i] * factor;
    const Statistics after = other.result();
    CHECK(after.tensor == before.tensor);
    CHECK(after.element == before.element);
    CHECK(after.gain == before.gain);
    for (size_t f = 0; f < before.families.size(); ++f) {
      CHECK(after.families[f].normalised == before.families[f].normalised);
    }
  }
  SECTION("a larger |d| never lowers E_T, M_A or M_E") {
    for (int trial = 0; trial < 200; ++trial) {
      Case worse = c;
      const size_t i = random.bits() % o.size();
      worse.y[i] = o[i] + (c.y[i] - o[i]) * (1 + random.uniform());
      const Statistics after = worse.result();
      CHECK(after.tensor >= before.tensor);
      CHECK(after.element >= before.element);
      for (size_t f = 0; f < before.families.size(); ++f) {
        CHECK(after.families[f].value >= before.families[f].value);
        CHECK(after.families[f].normalised >= before.families[f].normalised);
      }
    }
  }
}

TEST_CASE("informative statistics by hand", "[statistics]") {
  std::vector<double> o(16, 1);
  o[1] = -4;
  Case c = make({1, 16}, {"token", "channel"}, o);
  c.y[1] = -4.5;
  c.y[2] = 1.25;
  const Details d = c.informative();
  const double energy = 0.25 + 0.0625, signal = 15 + 16;
  CHECK(value_of(d, "max_abs") == 0.5);
  CHECK(d.values[0].at == 1);
  CHECK(value_of(d, "max_rel") == 0.25);
  CHECK(d.values[1].at == 2);
  CHECK(value_of(d, "nmse") == Approx(energy / signal));
  CHECK(value_of(d, "snr_db") == Approx(10 * std::log10(signal / energy)));
  CHECK(value_of(d, "sign_bias") ==
        Approx((-0.5 / 4 + 0.25 / (1 / 0.6745)) / unit_roundoff(DType::f32) / 16));
  const double dot = 13 + 18 + 1 + 1.25, y2 = 14 + 20.25 + 1.5625;
  CHECK(value_of(d, "one_minus_cosine") == Approx(1 - dot / std::sqrt(y2 * signal)).epsilon(1e-9));
  CHECK(value_of(d, "inside_torch_defaults") == Approx(14.0 / 16));
  CHECK(d.octaves[0] == 14);
  CHECK(d.octaves.back() == 2);  // 2^21 units and more
  CHECK(value_of(d, "z_p50") == 0.0625);
  CHECK(value_of(d, "z_max") == kInf);
  REQUIRE_FALSE(d.worst_groups.empty());
  CHECK(d.worst_groups[0].name == "token 0");
}

TEST_CASE("cosine and correlation do not see what they are blind to", "[statistics]") {
  Random random(3);
  const std::vector<double> o = random.normals(64);
  Case c = make({8, 8}, {"token", "channel"}, o);
  for (double& x : c.y) x *= 2;
  CHECK(value_of(c.informative(), "one_minus_cosine") == Approx(0).margin(1e-15));
  for (size_t i = 0; i < o.size(); ++i) c.y[i] = o[i] + 1;
  CHECK(value_of(c.informative(), "one_minus_pcc") == Approx(0).margin(1e-15));
  CHECK(value_of(c.informative(), "one_minus_cosine") > 0.1);
  CHECK(c.result().tensor > 0.5);
}

TEST_CASE("at most five groups of a family are listed, worst first", "[statistics]") {
  Case c = make({9, 8}, {"token", "channel"}, std::vector<double>(72, 1));
  for (size_t t = 0; t < 9; ++t) c.y[t * 8] += 0.01 * static_cast<double>(t + 1);
  const Details d = c.informative();
  CHECK(d.worst_groups[0].name == "token 8");
  CHECK(d.worst_groups[4].name == "token 4");
  CHECK(d.worst_groups[5].family == "channel");
}

TEST_CASE("octaves and quantiles", "[statistics]") {
  CHECK(octave_of(0) == 0);
  CHECK(octave_of(0.0624) == 0);
  CHECK(octave_of(0.0625) == 1);
  CHECK(octave_of(0.9999) == 4);
  CHECK(octave_of(1) == 5);
  CHECK(octave_of(0x1p19) == 24);
  CHECK(octave_of(0x1p20) == 25);
  CHECK(octave_of(kInf) == 25);
  CHECK(octave_of(kNan) == 25);
  std::vector<int64_t> octaves(kOctaves, 0);
  CHECK(octave_quantile(octaves, 0.5) == 0);
  octaves[0] = 50;
  octaves[5] = 49;
  octaves[25] = 1;
  CHECK(octave_quantile(octaves, 0.5) == 0.0625);
  CHECK(octave_quantile(octaves, 0.51) == 2);
  CHECK(octave_quantile(octaves, 0.99) == 2);
  CHECK(octave_quantile(octaves, 1) == kInf);
}

TEST_CASE("distances in units in the last place", "[statistics]") {
  CHECK(ulp_distance(DType::bf16, 1, 1 + 0x1p-7) == 1);
  CHECK(ulp_distance(DType::bf16, 1, 1 - 0x1p-8) == 1);
  CHECK(ulp_distance(DType::bf16, -0.0, 0.0) == 0);
  CHECK(ulp_distance(DType::f16, 0x1p-24, -0x1p-24) == 2);
  CHECK(ulp_distance(DType::f16, 0x1p-14, 0x1p-14 - 0x1p-24) == 1);
  CHECK(ulp_distance(DType::f32, 1, std::nextafter(1.0f, 2.0f)) == 1);
  CHECK(ulp_distance(DType::f32, 1, kInf) > (int64_t{1} << 40));
  CHECK(ulp_distance(DType::f32, kNan, kNan) == 0);
  CHECK(ulp_distance(DType::f64, -1e308, 1e308) > (int64_t{1} << 40));
  CHECK(ulp_distance(DType::i32, 5, -2) == 7);
  const std::vector<std::pair<int64_t, int>> bins = {
      {0, 0}, {1, 1}, {2, 2}, {3, 3}, {4, 3}, {5, 4}, {8, 4}, {9, 5}, {1048576, 21}, {1048577, 22}};
  for (const auto& [distance, bin] : bins) CHECK(ulp_bin(distance) == bin);
}

TEST_CASE("quick rounding is rounding", "[statistics]") {
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2);
  Random random(4);
  for (int i = 0; i < 20000; ++i) {
    const double x = std::ldexp(random.normal(), static_cast<int>(random.bits() % 300) - 150);
    const double near_tie = round_to(dtype, x) * (1 + unit_roundoff(dtype));
    for (const double value : {x, near_tie}) {
      const double fast = round_quickly(dtype, value), slow = round_to(dtype, value);
      if (!(fast == slow || (std::isnan(fast) && std::isnan(slow)))) FAIL(value << ": " << fast);
    }
  }
  CHECK(std::isnan(round_quickly(dtype, kNan)));
  CHECK(round_quickly(dtype, 0) == 0);
}

}  // namespace plumb::harness
