// Every rope type against numbers worked out by hand from the papers' formulas.
#include <cmath>

#include "blocks/models/rotary_angles.h"
#include "blocks/rotary.h"
#include "kernels/core/error.h"
#include "tests/blocks/support.h"

using Catch::Contains;

namespace plumb::blocks::testing {
namespace {

using List = std::vector<double>;

Params rope(const char* type, double dim, double theta,
            std::initializer_list<std::pair<const char*, Params::Value>> more = {}) {
  Params p = params_of(more);
  p.set("type", std::string(type));
  p.set("dim", dim);
  p.set("theta", theta);
  return p;
}

void check(const Params& params, const List& expected, double scaling) {
  const RotaryFrequencies got = RotaryFrequencies::compute(params);
  CHECK_NOTHROW(params.finish());
  REQUIRE(got.inv_freq.size() == expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    INFO("frequency " << i);
    CHECK(got.inv_freq[i] == Approx(expected[i]).epsilon(1e-14));
  }
  CHECK(got.attention_scaling == Approx(scaling).epsilon(1e-14));
}

}  // namespace

TEST_CASE("default rope: theta^(-2i/d)") {
  check(rope("default", 8, 10000), {1, 0.1, 0.01, 0.001}, 1);
  check(rope("default", 2, 500000), {1}, 1);
  check(rope("default", 4, 49), {1, 1.0 / 7}, 1);
}

TEST_CASE("linear rope: positions divided by the factor") {
  check(rope("linear", 4, 10000, {{"factor", 4.0}}), {0.25, 0.0025}, 1);
}

TEST_CASE("dynamic rope: the base grows beyond the trained length") {
  // d / (d - 2) = 2; (2 * 20 / 10 - 1)^2 = 9, so theta = 900
  check(rope("dynamic", 4, 100, {{"factor", 2.0}, {"max_position", 10.0}, {"length", 20.0}}),
        {1, 1.0 / 30}, 1);
  // one past the trained length: (2.2 - 1)^2 = 1.44, theta = 144
  check(rope("dynamic", 4, 100, {{"factor", 2.0}, {"max_position", 10.0}, {"length", 11.0}}),
        {1, 1.0 / 12}, 1);
  for (const double length : {10.0, 3.0}) {
    check(rope("dynamic", 4, 100, {{"factor", 2.0}, {"max_position", 10.0}, {"length", length}}),
          {1, 0.1}, 1);
  }
}

TEST_CASE("llama3 rope: short wavelengths kept, long ones divided, blended between") {
  // Wavelengths 2 pi, 62.8, 628, 6283; bounds 64 / 4 = 16 and 64 / 1 = 64.
  const double blend = (64 * 0.1 / (2 * M_PI) - 1) / 3;
  check(rope("llama3", 8, 10000,
             {{"factor", 8.0},
              {"low_freq_factor", 1.0},
              {"high_freq_factor", 4.0},
              {"original_max_position", 64.0}}),
        {1, (1 - blend) * 0.1 / 8 + blend * 0.1, 0.01 / 8, 0.001 / 8}, 1);
}

TEST_CASE("yarn rope: a ramp over the frequency index") {
  const auto yarn = [](bool truncate,
                       std::initializer_list<std::pair<const char*, Params::Value>> more = {}) {
    Params p = rope("yarn", 8, 10000, more);
    p.set("factor", 4.0);
    p.set("original_max_position", 4096.0);
    p.set("beta_fast", 32.0);
    p.set("beta_slow", 1.0);
    p.set("truncate", truncate);
    return p;
  };
  const double scaling = 0.1 * std::log(4.0) + 1;
  // d ln(4096 / (beta 2 pi)) / (2 ln theta) = 1.309 and 2.814: to 1 and 3 when truncated.
  check(yarn(true), {1, 0.1, 0.01 * (0.5 / 4 + 0.5), 0.001 / 4}, scaling);
  const double low = 8 * std::log(4096 / (64 * M_PI)) / (2 * std::log(10000.0));
  const double high = 8 * std::log(4096 / (2 * M_PI)) / (2 * std::log(10000.0));
  CHECK(low == Approx(1.309).margin(5e-4));
  CHECK(high == Approx(2.814).margin(5e-4));
  const double ramp = (2 - low) / (high - low);
  check(yarn(false), {1, 0.1, 0.01 * (ramp / 4 + 1 - ramp), 0.001 / 4}, scaling);

  const double ratio = (0.2 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1);
  const List frequencies = {1, 0.1, 0.01 * (0.5 / 4 + 0.5), 0.001 / 4};
  check(yarn(true, {{"mscale", 2.0}, {"mscale_all_dim", 0.5}}), frequencies, ratio);
  check(yarn(true, {{"mscale", 2.0}, {"mscale_all_dim", 0.0}}), frequencies, scaling);
  check(yarn(true, {{"attention_factor", 0.75}}), frequencies, 0.75);
  check(yarn(true, {{"attention_factor", Params::Null{}}}), frequencies, scaling);
}

TEST_CASE("yarn rope: the ramp's end is clamped to d - 1 and a ramp of no width is a step") {
  // Ends at 2.5 -> 2 and 7.3 -> 8, clamped to 7, beyond the last of four frequencies: 1/5 of the
  // ramp.
  Params p = rope("yarn", 8, 10000,
                  {{"factor", 2.0},
                   {"original_max_position", 0x1p27},
                   {"beta_fast", 65536.0},
                   {"beta_slow", 1.0},
                   {"truncate", true}});
  check(p, {1, 0.1, 0.01, 0.001 * (0.2 / 2 + 0.8)}, 0.1 * std::log(2.0) + 1);
  p.set("beta_fast", 32.0);
  // Trained on 16: low = -1.1 -> 0, high = 0.41 -> 1.
  p.set("original_max_position", 16.0);
  check(p, {1, 0.05, 0.005, 0.0005}, 0.1 * std::log(2.0) + 1);
  // Trained on 5: both ends at 0, a step of 0.001.
  p.set("original_max_position", 5.0);
  check(p, {1, 0.05, 0.005, 0.0005}, 0.1 * std::log(2.0) + 1);
}

TEST_CASE("longrope: one factor per frequency, chosen by the length of the call") {
  const auto longrope = [](double length, Params::Value attention_factor = Params::Null{}) {
    return rope("longrope", 4, 10000,
                {{"factor", 4.0},
                 {"original_max_position", 16.0},
                 {"length", length},
                 {"short_factor", List{1, 1.25}},
                 {"long_factor", List{2, 4}},
                 {"attention_factor", attention_factor}});
  };
  const double scaling = std::sqrt(1.5);  // 1 + ln 4 / ln 16
  check(longrope(17), {0.5, 0.0025}, scaling);
  check(longrope(16), {1, 0.008}, scaling);
  check(longrope(3), {1, 0.008}, scaling);
  check(longrope(17, 1.5), {0.5, 0.0025}, 1.5);
}

TEST_CASE("longrope: factors are float32 constants") {
  const Params p = rope("longrope", 4, 10000,
                        {{"factor", 1.0},
                         {"original_max_position", 16.0},
                         {"length", 1.0},
                         {"short_factor", List{1, 1.1}},
                         {"long_factor", List{1, 1}}});
  CHECK(RotaryFrequencies::compute(p).inv_freq[1] == 0.01 / static_cast<double>(1.1f));
  CHECK(RotaryFrequencies::compute(p).attention_scaling == 1);
}

TEST_CASE("rotary angles: frequencies of another program are roundings of the model's own") {
  Bench bench("oracle");
  RotaryAngles angles(bench.device(), DType::f64, rope("default", 4, 100), 8);
  const Tensor cos = bench.empty({1, 3, 4}), sin = bench.empty({1, 3, 4});
  const auto last_angle = [&](const List& inv_freq) {  // of position 2
    angles.set_frequencies(inv_freq);
    angles(bench.context(), cos, sin, 0);
    return std::asin(values_of(sin)[9]) / 2;
  };
  const double own = 0.1f, next = std::nextafter(0.1f, 1.0f);
  CHECK(last_angle({1, own}) == Approx(own).epsilon(1e-15));
  CHECK(last_angle({1, next}) == Approx(next).epsilon(1e-15));
  CHECK_THAT(message_of<BadInput>([&] {
               last_angle({1, 0.10001});
             }),
             Contains("inverse frequency 1 is given as 0.10001, the model's is 0.1"));
  CHECK_THAT(message_of<BadInput>([&] { last_angle({1}); }),
             Contains("1 inverse frequencies are given, the model has 2"));
}

TEST_CASE("rope: bad numbers are named") {
  CHECK_THAT(message_of<Unsupported>([] { RotaryFrequencies::compute(rope("su", 4, 100)); }),
             Contains("rotary type \"su\""));
  for (const double dim : {3.0, 0.0, -2.0, 0x1p40}) {
    CHECK_THAT(message_of<BadInput>([&] { RotaryFrequencies::compute(rope("default", dim, 100)); }),
               Contains("expected an even number"));
  }
  const Params p = rope("longrope", 4, 100,
                        {{"factor", 2.0},
                         {"original_max_position", 16.0},
                         {"length", 1.0},
                         {"short_factor", List{1, 1, 1}},
                         {"long_factor", List{1, 1}}});
  CHECK_THAT(message_of<BadInput>([&] { RotaryFrequencies::compute(p); }),
             Contains("short_factor has 3 entries, dim / 2 is 2"));
}

}  // namespace plumb::blocks::testing
