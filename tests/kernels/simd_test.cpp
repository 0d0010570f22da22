// The row functions of every instruction set that runs here.
#include "kernels/cpu/simd.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "kernels/core/dtype.h"
#include "kernels/cpu/isa.h"
#include "kernels/ops/map_call.h"
#include "kernels/ops/ops.h"
#include "tests/kernels/support.h"

namespace plumb::cpu {
namespace {

const Simd& any_simd() {
  const std::vector<const Simd*> usable = usable_simds();
  const auto at = GENERATE_COPY(range(size_t{0}, usable.size()));
  return *usable[at];
}

std::vector<float> floats(int64_t n, uint32_t seed, double sigma = 1) {
  const Values values = random_values(DType::f32, n, seed, sigma);
  return std::vector<float>(values.begin(), values.end());
}

// Distance of y from the exact value in units of the last place of y's binade.
double ulps(float y, double exact) {
  const float rounded = static_cast<float>(exact);
  if (y == rounded || (std::isnan(y) && std::isnan(exact))) return 0;
  if (!std::isfinite(rounded) || !std::isfinite(y)) return std::numeric_limits<double>::infinity();
  int exponent = 0;
  std::frexp(exact, &exponent);
  return std::fabs(y - exact) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

TEST_CASE("simd: all 16-bit codes widen and come back, on every instruction set") {
  const Simd& simd = any_simd();
  INFO(simd.name);
  std::vector<uint16_t> codes(0x10000), back(0x10000);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(codes.size());
  for (const Stored half : {kF16, kBf16}) {
    simd.rows[half].widen(wide.data(), codes.data(), 0x10000);
    simd.rows[half].narrow(back.data(), wide.data(), 0x10000);
    for (size_t i = 0; i < codes.size(); ++i) {
      const float expected = half == kBf16 ? bf16_to_f32(codes[i]) : f16_to_f32(codes[i]);
      if (std::isnan(expected)) {
        REQUIRE(std::isnan(wide[i]));
        REQUIRE(std::isnan(half == kBf16 ? bf16_to_f32(back[i]) : f16_to_f32(back[i])));
      } else {
        REQUIRE(std::bit_cast<uint32_t>(wide[i]) == std::bit_cast<uint32_t>(expected));
        REQUIRE(back[i] == codes[i]);
      }
    }
  }
}

TEST_CASE("simd: narrowing equals the scalar conversion, ties included") {
  const Simd& simd = any_simd();
  INFO(simd.name);
  std::mt19937 random(3);
  std::vector<float> x;
  for (int i = 0; i < 1'000'000; ++i)
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const uint32_t half = std::bit_cast<uint32_t>(f16_to_f32(static_cast<uint16_t>(code)));
    for (const uint32_t add : {0x0fffu, 0x1000u, 0x1001u})
      x.push_back(std::bit_cast<float>(half + add));
    for (const uint32_t add : {0x7fffu, 0x8000u, 0x8001u}) {
      x.push_back(std::bit_cast<float>((code << 16) + add));
    }
  }
  const int64_t n = static_cast<int64_t>(x.size());
  std::vector<uint16_t> narrow(x.size());
  std::vector<float> rounded(x.size());
  for (const Stored half : {kF16, kBf16}) {
    simd.rows[half].narrow(narrow.data(), x.data(), n);
    simd.rows[half].round(rounded.data(), x.data(), n);
    for (size_t i = 0; i < x.size(); ++i) {
      const float wide = half == kBf16 ? bf16_to_f32(narrow[i]) : f16_to_f32(narrow[i]);
      if (std::isnan(x[i])) {
        if (!std::isnan(wide) || !std::isnan(rounded[i])) FAIL("NaN lost at " << i);
        continue;
      }
      const uint16_t expected = half == kBf16 ? f32_to_bf16(x[i]) : f32_to_f16(x[i]);
      if (narrow[i] != expected) FAIL(x[i] << " gives code " << narrow[i] << ", not " << expected);
      if (std::bit_cast<uint32_t>(rounded[i]) != std::bit_cast<uint32_t>(wide))
        FAIL("round " << x[i]);
    }
  }
}

TEST_CASE("simd: exp within 1.5 ulp, subnormals and limits included") {
  const Simd& simd = any_simd();
  INFO(simd.name);
  std::vector<float> x;
  for (double v = -104.5; v < 89.5; v += 0.00037) x.push_back(static_cast<float>(v));
  for (float v = 1e-40f; v < 1; v *= 1.37f) {
    x.push_back(v);
    x.push_back(-v);
  }
  std::vector<float> y(x.size());
  simd.rows[kF32].exp_sum(y.data(), x.data(), 0, static_cast<int64_t>(x.size()));
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double error = ulps(y[i], std::exp(static_cast<double>(x[i])));
    if (error > worst) worst = error;
    if (error > 1.5) FAIL("exp(" << x[i] << ") is off by " << error << " ulp");
  }
  CAPTURE(worst);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const float special[5] = {-infinity, infinity, std::nanf(""), -1e30f, 1e30f};
  float result[5];
  simd.rows[kF32].exp_sum(result, special, 0, 5);
  REQUIRE(result[0] == 0);
  REQUIRE(result[1] == infinity);
  REQUIRE(std::isnan(result[2]));
  REQUIRE(result[3] == 0);
  REQUIRE(result[4] == infinity);
}

// Limits: exp 1.5 ulp, a division, product or sum 0.5, a polynomial 1.5.
TEST_CASE("simd: tanh within 2 ulp, silu within 4, gelu within 6") {
  const Simd& simd = any_simd();
  INFO(simd.name);
  const auto worst = [&](Activation function, const auto& exact, double limit) {
    std::vector<float> x;
    for (double v = -12; v < 12; v += 0.000113) x.push_back(static_cast<float>(v));
    for (float v = 1e-30f; v < 1; v *= 1.19f) {
      x.push_back(v);
      x.push_back(-v);
    }
    std::vector<float> y(x.size());
    simd.floats().apply(formula_of(function), y.data(), x.data(), nullptr,
                        static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      const double error = ulps(y[i], exact(static_cast<double>(x[i])));
      if (error > limit)
        FAIL(name_of(function) << "(" << x[i] << ") is off by " << error << " ulp");
    }
  };
  worst(
      Activation::tanh, [](double v) { return std::tanh(v); }, 2);
  worst(
      Activation::silu, [](double v) { return v / (1 + std::exp(-v)); }, 4);
  worst(
      Activation::gelu, [](double v) { return v / 2 * std::erfc(-v / std::sqrt(2.0)); }, 6);
}

TEST_CASE("simd: reductions of every length, alike on every instruction set and alignment") {
  const Simd& simd = any_simd();
  INFO(simd.name);
  const std::vector<float> a = floats(300, 1), b = floats(300, 2);
  for (int64_t n = 0; n <= 257; ++n) {
    double sum = 0, squares = 0, dot = 0, deviations = 0, magnitude = 0;
    float max = -7;
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      sum += a[i];
      squares += double{a[i]} * a[i];
      dot += double{a[i]} * b[i];
      deviations += (double{a[i]} - 0.5) * (double{a[i]} - 0.5);
      magnitude += std::fabs(a[i]) + double{a[i]} * a[i] + std::fabs(double{a[i]} * b[i]) + 1;
      max = std::max(max, a[i]);
    }
    // n / 32 additions in a lane, five to join the lanes, two roundings of a term.
    const double allowed = (static_cast<double>(n) / kLanes + 8) * kU32 * magnitude;
    REQUIRE(std::fabs(simd.rows[kF32].sum(a.data(), n) - sum) <= allowed);
    REQUIRE(std::fabs(simd.rows[kF32].sum_squares(a.data(), n) - squares) <= allowed);
    REQUIRE(std::fabs(simd.dot(a.data(), b.data(), n) - dot) <= allowed);
    REQUIRE(std::fabs(simd.rows[kF32].sum_squared_deviations(a.data(), 0.5f, n) - deviations) <=
            2 * allowed);
    REQUIRE(simd.rows[kF32].max(a.data(), -7, n) == max);
    REQUIRE(simd.rows[kF32].sum(a.data(), n) == simd_baseline().rows[kF32].sum(a.data(), n));
    std::vector<float> shifted(static_cast<size_t>(n) + 1);
    std::copy_n(a.begin(), n, shifted.begin() + 1);
    REQUIRE(simd.dot(shifted.data() + 1, b.data(), n) == simd.dot(a.data(), b.data(), n));
  }
}

TEST_CASE("simd: an element's result does not depend on its place in the row") {
  const Simd& simd = any_simd();
  INFO(simd.name);
  const std::vector<float> x = floats(100, 5, 3);
  for (const auto function :
       {Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::tanh}) {
    const auto apply = [&](float* y, const float* in, int64_t n) {
      simd.floats().apply(formula_of(function), y, in, nullptr, n);
    };
    std::vector<float> whole(100), piece(100);
    apply(whole.data(), x.data(), 100);
    for (int64_t begin = 0; begin < 20; ++begin) {
      apply(piece.data(), x.data() + begin, 61);
      for (size_t i = 0; i < 61; ++i) REQUIRE(piece[i] == whole[i + static_cast<size_t>(begin)]);
    }
  }
}

TEST_CASE("simd: stored rows of every length, in place too, equal the float32 rows and R()") {
  const Simd& simd = any_simd();
  const Stored stored = GENERATE(kF16, kBf16, kF32);
  INFO(simd.name << ", format " << stored);
  const RowFunctions &rows = simd.rows[stored], &wide = simd.rows[kF32];
  constexpr int64_t kMost = 70;
  const std::vector<float> a = floats(kMost, 7), b = floats(kMost, 8, 3);
  const auto as_stored = [&](const std::vector<float>& x, int64_t n) {
    std::vector<char> out(4 * kMost,
                          0x55);  // the bytes after the row must neither count nor change
    rows.narrow(out.data(), x.data(), n);
    return out;
  };
  const auto as_floats = [&](const std::vector<char>& x, int64_t n) {
    std::vector<float> out(kMost);
    rows.widen(out.data(), x.data(), n);
    return out;
  };
  for (int64_t n = 0; n <= kMost; ++n) {
    const std::vector<char> x = as_stored(a, n), y = as_stored(b, n);
    const std::vector<float> x32 = as_floats(x, n), y32 = as_floats(y, n);
    std::vector<float> step(kMost), other(kMost);
    const auto check = [&](const char* name, const auto& in_place) {
      INFO(name << ", n " << n);
      std::vector<char> out = x;
      in_place(out.data());
      REQUIRE(out == as_stored(step, n));
    };
    wide.add(step.data(), x32.data(), y32.data(), n);
    check("add", [&](void* out) { rows.add(out, out, y.data(), n); });
    wide.apply(Formula::silu, step.data(), x32.data(), nullptr, n);
    rows.round(step.data(), step.data(), n);
    wide.mul(step.data(), step.data(), y32.data(), n);
    check("gated silu", [&](void* out) { rows.apply(Formula::gated_silu, out, out, y.data(), n); });
    wide.divide(step.data(), x32.data(), 3, n);
    rows.round(step.data(), step.data(), n);
    wide.apply(Formula::tanh, step.data(), step.data(), nullptr, n);
    rows.round(step.data(), step.data(), n);
    wide.scale(step.data(), step.data(), 3, n);
    check("softcap", [&](void* out) { rows.apply(Formula::softcap, out, out, nullptr, n, 3); });
    wide.scale(step.data(), x32.data(), 0.3f, n);
    for (const int before : {1, 0}) {
      if (before) rows.round(step.data(), step.data(), n);
      wide.mul(step.data(), step.data(), y32.data(), n);
      const auto index =
          static_cast<size_t>(before ? WeightRounding::before : WeightRounding::after);
      check("rms_normalised",
            [&](void* out) { rows.rms_normalised[index](out, out, 0.3f, y.data(), 0, n); });
      wide.scale(step.data(), x32.data(), 0.3f, n);
    }
    REQUIRE(rows.sum(x.data(), n) == wide.sum(x32.data(), n));
    REQUIRE(rows.sum_squares(x.data(), n) == wide.sum_squares(x32.data(), n));
    REQUIRE(rows.max(x.data(), -9, n) == wide.max(x32.data(), -9, n));
    REQUIRE(rows.sum_squared_deviations(x.data(), 0.5f, n) ==
            wide.sum_squared_deviations(x32.data(), 0.5f, n));
    REQUIRE(rows.exp_sum(step.data(), x.data(), 1, n) ==
            wide.exp_sum(other.data(), x32.data(), 1, n));
    REQUIRE(step == other);
    wide.divide(step.data(), b.data(), 3, n);
    check("quotient", [&](void* out) { rows.narrow_quotient(out, b.data(), 3, n); });
    for (int m = 1; m <= kGemvRows && n + m <= kMost; ++m) {
      float sums[kGemvRows];
      rows.dots[m - 1](sums, b.data(), 1, x.data(), n);  // rows that overlap
      for (int i = 0; i < m; ++i) REQUIRE(sums[i] == simd.dot(b.data() + i, x32.data(), n));
    }
    if (n == 0 || n > simd.tile_columns / 2) continue;
    const float max = wide.max(x32.data(), -9, n);
    const float sum = wide.exp_sum(other.data(), x32.data(), max, n);
    wide.divide(step.data(), other.data(), sum, n);
    check("softmax", [&](void* out) { rows.softmax_vector(out, out, n); });
  }
}

TEST_CASE("simd: a NaN stays one, whatever its payload") {
  const Simd& simd = any_simd();
  INFO(simd.name);
  const RowFunctions& rows = simd.rows[kBf16];
  std::vector<uint16_t> x, ones;
  for (uint32_t code = 0; code < 0x10000; ++code) {
    if (std::isnan(bf16_to_f32(static_cast<uint16_t>(code))))
      x.push_back(static_cast<uint16_t>(code));
  }
  ones.assign(x.size(), 0x3f80);
  const auto n = static_cast<int64_t>(x.size());
  const auto check = [&](const char* name, const auto& apply) {
    INFO(name);
    std::vector<uint16_t> out(x.size()), more(x.size());
    apply(out.data(), more.data());
    for (size_t i = 0; i < x.size(); ++i) REQUIRE(std::isnan(bf16_to_f32(out[i])));
  };
  const auto *in = x.data(), *one = ones.data();
  check("add", [&](auto* out, auto*) { rows.add(out, one, in, n); });
  check("mul", [&](auto* out, auto*) { rows.mul(out, in, one, n); });
  check("scale", [&](auto* out, auto*) { rows.scale(out, in, 2, n); });
  check("softcap", [&](auto* out, auto*) { rows.apply(Formula::softcap, out, in, nullptr, n, 2); });
  check("rms_normalised", [&](auto* out, auto*) { rows.rms_normalised[0](out, in, 2, one, 0, n); });
  check("rotate",
        [&](auto* out, auto* more) { rows.rotate(out, more, in, one, one, one, one, one, n); });
  for (int formula = 0; formula < kFormulas; ++formula) {
    const bool numbers =
        with_formula(static_cast<Formula>(formula), []<class F>() { return !F::kGivesBool; });
    if (!numbers || static_cast<Formula>(formula) == Formula::sign) continue;  // 0 or 1
    // As torch's: the gradient passes where x is not at most 0.
    if (static_cast<Formula>(formula) == Formula::relu_backward) continue;
    const bool chooses =
        with_formula(static_cast<Formula>(formula), []<class F>() { return F::kHasCondition; });
    const uint16_t* second = chooses ? in : one;
    check("formula",
          [&](auto* out, auto*) { rows.map[formula](out, in, second, second, 2, 0, n); });
  }
}

TEST_CASE("simd: cosines and sines are rounded once, up to the largest angle") {
  const Simd& simd = any_simd();
  INFO(simd.name);
  std::vector<float> angles;
  for (float x = 1e-6f; x < kMostAngle; x *= 1.0037f) {
    angles.push_back(x);
    angles.push_back(-x);
  }
  angles.push_back(kMostAngle);
  for (int i = 0; i < 100; ++i) angles.push_back(static_cast<float>(i * std::acos(-1.0) / 4));
  std::vector<float> cosines(angles.size()), sines(angles.size());
  simd.cos_sin(cosines.data(), sines.data(), angles.data(), 1.1,
               static_cast<int64_t>(angles.size()));
  for (size_t i = 0; i < angles.size(); ++i) {
    const double angle = angles[i];
    INFO("angle " << angle);
    REQUIRE(ulps(cosines[i], 1.1 * std::cos(angle)) < 0.51);
    REQUIRE(ulps(sines[i], 1.1 * std::sin(angle)) < 0.51);
  }
}

TEST_CASE("simd: the product's tile and its packing") {
  const Simd& simd = any_simd();
  INFO(simd.name);
  const int64_t columns = simd.tile_columns, ldb = columns + 3, ldc = columns + 5;
  REQUIRE(columns <= kMaxTileColumns);
  const int64_t k = GENERATE(0, 1, 7, 64);
  std::vector<float> a(static_cast<size_t>(k * kTileRows + 8)),
      b(static_cast<size_t>(k * ldb + ldb));
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i % 7) - 3;
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i % 5) - 2;
  std::vector<float> c(static_cast<size_t>(kTileRows * ldc), 100.0f);
  for (const bool accumulate : {false, true}) {
    simd.tile(k, a.data(), b.data(), ldb, c.data(), ldc, accumulate);
    for (int64_t i = 0; i < kTileRows; ++i) {
      for (int64_t j = 0; j < ldc; ++j) {
        float sum = 0;
        for (int64_t p = 0; p < k; ++p) {
          sum += a[static_cast<size_t>(p * kTileRows + i)] * b[static_cast<size_t>(p * ldb + j)];
        }
        const float expected = j >= columns ? 100 : accumulate ? 2 * sum : sum;
        REQUIRE(c[static_cast<size_t>(i * ldc + j)] == expected);
      }
    }
  }
  const int64_t n = GENERATE(0, 1, 8, 21), stride = GENERATE(6, 8, 16);
  const std::vector<float> source = floats(8 * 32, 6);
  const float* rows[8];
  for (int64_t i = 0; i < 8; ++i) rows[i] = source.data() + 32 * i;
  std::vector<float> out(static_cast<size_t>(n * stride + 16), -1.0f);
  simd.transpose8(out.data(), stride, rows, n);
  for (int64_t p = 0; p < n; ++p) {
    for (int64_t i = 0; i < std::min<int64_t>(stride, 8); ++i) {
      REQUIRE(out[static_cast<size_t>(p * stride + i)] == rows[i][p]);
    }
  }
  const int64_t end = n == 0 ? 0 : (n - 1) * stride + 8;
  REQUIRE(out[static_cast<size_t>(end)] == -1);
}

}  // namespace
}  // namespace plumb::cpu
