// causal_mask and sdpa, fused and composed.
#include <cmath>
#include <limits>

#include "kernels/core/error.h"
#include "tests/kernels/attention_problem.h"

namespace plumb {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Expected {
  Values exact, bound;
};

// Attention in float64, and how far float32 sums of exact products may be from it.
Expected attention(const AttentionProblem& p, const Values& q, const Values& k, const Values& v,
                   const SdpaParams& params) {
  const AttentionSizes& s = p.sizes;
  Expected e;
  for (int64_t row = 0; row < s.batch * s.queries * s.heads; ++row) {
    const int64_t h = row % s.heads, t = row / s.heads % s.queries, b = row / s.heads / s.queries;
    const int64_t kv = b * s.kv_heads + h / (s.heads / s.kv_heads);
    Values weights;
    double max = -kInfinity, score_error = 0;
    bool any = false;
    for (int64_t key = 0; key < s.keys; ++key) {
      double sum = 0, magnitude = 0;
      for (int64_t d = 0; d < s.width; ++d) {
        const double product = q[index(((b * s.heads + h) * s.queries + t) * s.width + d)] *
                               k[index((kv * s.keys + key) * s.width + d)];
        sum += product;
        magnitude += std::fabs(product);
      }
      sum *= params.scale;
      magnitude *= std::fabs(params.scale);
      if (params.softcap) sum = *params.softcap * std::tanh(sum / *params.softcap);
      const bool allowed = p.mask_case.allowed(b, h, t, key, s);
      any = any || allowed;
      weights.push_back(allowed ? sum + p.mask_case.added(t, key) : -kInfinity);
      max = std::fmax(max, weights.back());
      score_error = std::fmax(score_error, (static_cast<double>(s.width) + 8) * kU32 * magnitude);
    }
    double total = 0;
    for (double& w : weights) {
      if (!any) w = p.mask.fully_masked == FullyMasked::zero ? 0 : 1;
      else w = std::exp(w - max);
      total += w;
    }
    for (int64_t d = 0; d < s.value_width; ++d) {
      double sum = 0, magnitude = 0;
      for (int64_t key = 0; key < s.keys; ++key) {
        const double part = weights[index(key)] / (total == 0 ? 1 : total) *
                            v[index((kv * s.keys + key) * s.value_width + d)];
        sum += part;
        magnitude += std::fabs(part);
      }
      e.exact.push_back(sum);
      // Scores, exponentials of differences, two sums over the keys, the division.
      const double relative = 4 * score_error + (2 * static_cast<double>(s.keys) + 16) * kU32;
      e.bound.push_back(relative * magnitude + rounding_unit(p.dtype) * std::fabs(sum) +
                        smallest_step(p.dtype));
    }
  }
  return e;
}

TEST_CASE("sdpa fused: against float64, every mask, grouped heads, softcap") {
  const auto device = open_test_device(GENERATE(from_range(test_devices_of_products())));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const AttentionSizes s = GENERATE(from_range(all_sizes()));
  const MaskCase mask_case = GENERATE(from_range(mask_cases()));
  const bool softcap = GENERATE(false, true);
  const auto fully_masked = GENERATE(FullyMasked::uniform, FullyMasked::zero);
  INFO(mask_case.name);
  AttentionProblem p(*device, dtype, s, mask_case);
  p.mask.fully_masked = fully_masked;
  SdpaParams params;
  params.scale = 1 / std::sqrt(static_cast<double>(s.width));
  if (softcap) params.softcap = 5;
  const Values q = random_values(dtype, s.batch * s.heads * s.queries * s.width, 1, 2);
  const Values k = random_values(dtype, s.batch * s.kv_heads * s.keys * s.width, 2, 2);
  const Values v = random_values(dtype, s.batch * s.kv_heads * s.keys * s.value_width, 3);
  Guarded query(*device, dtype, {s.batch, s.heads, s.queries, s.width}, Layout::exchanged);
  Guarded key(*device, dtype, {s.batch, s.kv_heads, s.keys, s.width}, Layout::padded);
  Guarded value(*device, dtype, {s.batch, s.kv_heads, s.keys, s.value_width});
  Guarded out(*device, dtype, {s.batch, s.queries, s.heads, s.value_width}, Layout::padded);
  query.set(q);
  key.set(k);
  value.set(v);
  const Values y =
      run(*device, {&out}, [&] { device->ops().sdpa(out, query, key, value, p.mask, params); })[0];
  const Expected e = attention(p, q, k, v, params);
  require_close(y, e.exact, e.bound);
}

// The cpu's fused version against its own composition: same mathematics, eager rounding points.
TEST_CASE("sdpa composed: agrees with the fused version in float32") {
  const auto device = open_test_device(GENERATE(from_range(test_devices_of_products())));
  const AttentionSizes s = GENERATE(from_range(all_sizes()));
  const MaskCase mask_case = GENERATE(from_range(mask_cases()));
  INFO(mask_case.name);
  AttentionProblem p(*device, DType::f32, s, mask_case);
  SdpaParams params{0.25, 5};
  Guarded query(*device, DType::f32, {s.batch, s.heads, s.queries, s.width});
  Guarded key(*device, DType::f32, {s.batch, s.kv_heads, s.keys, s.width});
  Guarded value(*device, DType::f32, {s.batch, s.kv_heads, s.keys, s.value_width});
  Guarded out(*device, DType::f32, {s.batch, s.queries, s.heads, s.value_width});
  const Values q = random_values(DType::f32, query.tensor().numel(), 4);
  const Values k = random_values(DType::f32, key.tensor().numel(), 5);
  const Values v = random_values(DType::f32, value.tensor().numel(), 6);
  query.set(q);
  key.set(k);
  value.set(v);
  device->ops().set_fused(OpSet());
  const Values y =
      run(*device, {&out}, [&] { device->ops().sdpa(out, query, key, value, p.mask, params); })[0];
  Expected e = attention(p, q, k, v, params);
  for (double& bound : e.bound) bound *= 2;  // roundings after each of the five steps
  require_close(y, e.exact, e.bound);
}

TEST_CASE("sdpa: scores far apart, infinite and NaN") {
  const auto device = open_test_device(GENERATE(from_range(test_devices_of_products())));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  constexpr int64_t keys = 200;
  Guarded q(*device, dtype, {1, 3, 1, 2}), k(*device, dtype, {1, 3, keys, 2});
  Guarded v(*device, dtype, {1, 3, keys, 3}), out(*device, dtype, {1, 1, 3, 3});
  Values key(index(3 * keys * 2), 0.0), value;
  for (int64_t i = 0; i < 3 * keys * 3; ++i) value.push_back(static_cast<double>(i % 64));
  key[2 * 150] = 128;                 // head 0: score 128 * 128 for key 150 alone
  key[index(2 * (keys + 7))] = -128;  // head 1: one key far below the others
  key[index(2 * (2 * keys + 9))] = std::nan("");
  q.set({128, 0, 128, 0, 128, 0});
  k.set(key);
  v.set(value);
  AttentionMask mask;
  const Values y = run(*device, {&out}, [&] { device->ops().sdpa(out, q, k, v, mask, {}); })[0];
  for (size_t d = 0; d < 3; ++d) {
    REQUIRE(y[d] == value[150 * 3 + d]);
    double mean = 0;
    for (int64_t s = 0; s < keys; ++s)
      mean += s == 7 ? 0 : value[index((keys + s) * 3) + d] / (keys - 1);
    REQUIRE(y[3 + d] == Approx(mean).epsilon(rounding_unit(dtype) + 2 * keys * kU32));
    REQUIRE(std::isnan(y[6 + d]));
  }
}

TEST_CASE("sdpa: an output does not see what its mask hides") {
  const auto device = open_test_device(GENERATE(from_range(test_devices_of_products())));
  if (device->name() != "cpu") return;
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  constexpr int64_t tokens = 150, width = 16;
  const Shape shape{1, 2, tokens, width};
  Values a = random_values(dtype, shape.numel(), 7), b = a;
  Guarded q(*device, dtype, shape), k(*device, dtype, shape), v(*device, dtype, shape);
  Guarded out(*device, dtype, {1, tokens, 2, width});
  AttentionMask mask;
  mask.causal = true;
  mask.window = 20;
  const auto result = [&](const Values& keys) {
    q.set(a);
    k.set(keys);
    v.set(keys);
    return run(*device, {&out}, [&] { device->ops().sdpa(out, q, k, v, mask, {0.05, {}}); })[0];
  };
  const Values before = result(a);
  constexpr int64_t changed = 60;
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t d = 0; d < width; ++d) b[index((h * tokens + changed) * width + d)] += 1;
  }
  const Values after = result(b);
  for (int64_t t = 0; t < tokens; ++t) {
    bool same = true;
    for (int64_t i = 0; i < 2 * width; ++i) {
      same = same && before[index(t * 2 * width + i)] == after[index(t * 2 * width + i)];
    }
    INFO("query " << t);
    REQUIRE(same == (t < changed || t >= changed + 20));
  }
}

TEST_CASE("causal_mask: bool and additive, every mask, bit for bit") {
  const auto device = open_test_device(GENERATE(from_range(test_devices_of_products())));
  const DType dtype = GENERATE(DType::boolean, DType::f32, DType::f16, DType::bf16);
  const MaskCase mask_case = GENERATE(from_range(mask_cases()));
  const auto fully_masked =
      GENERATE(FullyMasked::uniform, FullyMasked::zero, FullyMasked::excluded);
  if (mask_case.additive) return;  // is a mask tensor already
  const AttentionSizes s{2, 4, 2, 9, 70, 1, 1};
  INFO(mask_case.name);
  AttentionProblem p(*device, DType::f32, s, mask_case);
  p.mask.fully_masked = fully_masked;
  const int64_t heads = mask_case.explicit_heads > 1 ? s.heads : 1;
  Guarded out(*device, dtype, {s.batch, heads, s.queries, s.keys}, Layout::padded);
  const Values y = run(*device, {&out}, [&] { device->ops().causal_mask(out, p.mask); })[0];
  Values expected;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t t = 0; t < s.queries; ++t) {
        for (int64_t k = 0; k < s.keys; ++k) {
          const bool allowed = mask_case.allowed(b, h, t, k, s);
          const double hidden = fully_masked == FullyMasked::zero ? -kInfinity : -info(dtype).max;
          expected.push_back(dtype == DType::boolean ? allowed : allowed ? 0 : hidden);
        }
      }
    }
  }
  REQUIRE(y == expected);
}

TEST_CASE("causal_mask: offsets at the ends of int64") {
  const auto device = open_test_device("cpu");
  Guarded out(*device, DType::boolean, {1, 1, 2, 3});
  const auto mask_of = [&](int64_t query_offset, int64_t key_offset, bool window) {
    AttentionMask mask;
    mask.causal = true;
    if (window) mask.window = INT64_MAX;
    mask.query_offset = query_offset;
    mask.key_offset = key_offset;
    return run(*device, {&out}, [&] { device->ops().causal_mask(out, mask); })[0];
  };
  REQUIRE(mask_of(INT64_MAX, 0, false) == Values(6, 1.0));
  REQUIRE(mask_of(INT64_MIN, 0, false) == Values(6, 0.0));
  REQUIRE(mask_of(0, INT64_MAX, true) == Values(6, 0.0));
  REQUIRE(mask_of(0, INT64_MIN, true) == Values({0, 0, 1, 0, 0, 0}));  // 2^63 - 2 < window
  REQUIRE(mask_of(INT64_MAX / 2, 0, true) == Values(6, 1.0));
  REQUIRE(mask_of(INT64_MAX, INT64_MIN / 2, true) ==
          Values(6, 0.0));  // further back than any window
}

TEST_CASE("sdpa refuses shapes and masks that do not fit") {
  const auto device = open_test_device("cpu");
  Ops& ops = device->ops();
  const auto tensor = [&](const Shape& shape) { return device->allocate(DType::f32, shape); };
  const Tensor q = tensor({1, 4, 3, 8}), k = tensor({1, 2, 5, 8}), out = tensor({1, 3, 4, 8});
  REQUIRE_THROWS_AS(ops.sdpa(out, q, tensor({1, 3, 5, 8}), tensor({1, 3, 5, 8}), {}, {}),
                    UsageError);
  REQUIRE_THROWS_AS(ops.sdpa(out, q, tensor({1, 2, 5, 7}), k, {}, {}), UsageError);
  REQUIRE_THROWS_AS(ops.sdpa(out, q, tensor({1, 2, 0, 8}), tensor({1, 2, 0, 8}), {}, {}),
                    UsageError);
  REQUIRE_THROWS_AS(ops.sdpa(q, q, k, k, {}, {}), UsageError);
  AttentionMask both;
  both.causal = true;
  both.explicit_mask = device->allocate(DType::boolean, {1, 1, 3, 5});
  REQUIRE_THROWS_AS(ops.sdpa(out, q, k, k, both, {}), UsageError);
  AttentionMask none;
  none.window = 0;
  REQUIRE_THROWS_AS(ops.sdpa(out, q, k, k, none, {}), UsageError);
  SdpaParams params;
  params.softcap = -1;
  REQUIRE_THROWS_AS(ops.sdpa(out, q, k, k, {}, params), UsageError);
}

}  // namespace
}  // namespace plumb
