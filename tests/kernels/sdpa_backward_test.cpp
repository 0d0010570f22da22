// sdpa_backward: the oracle against central differences of its own sdpa, devices against the
// oracle in float64.
#include <cmath>
#include <numeric>

#include "kernels/core/error.h"
#include "tests/kernels/attention_problem.h"

namespace plumb {
namespace {

// Odd ones, and those of more than a block of queries and of keys.
const std::vector<AttentionSizes>& odd_sizes() {
  static const std::vector<AttentionSizes> list = {{2, 4, 2, 11, 13, 7, 5},
                                                   {1, 4, 1, 1, 37, 3, 9},
                                                   {1, 4, 4, 5, 1, 1, 1},
                                                   {1, 4, 2, 70, 131, 20, 33},
                                                   {1, 4, 2, 67, 66, 136, 130}};
  return list;
}

struct Operands {
  Values q, k, v, d_out;
};

Operands operands_of(const AttentionSizes& s, DType dtype) {
  return {random_values(dtype, s.batch * s.heads * s.queries * s.width, 1),
          random_values(dtype, s.batch * s.kv_heads * s.keys * s.width, 2),
          random_values(dtype, s.batch * s.kv_heads * s.keys * s.value_width, 3),
          random_values(dtype, s.batch * s.queries * s.heads * s.value_width, 4)};
}

SdpaParams params_of(const AttentionSizes& s, bool softcap) {
  SdpaParams out;
  out.scale = 1.5 / std::sqrt(static_cast<double>(s.width));
  if (softcap) out.softcap = 1.25;
  return out;
}

Tensor filled(Device& device, DType dtype, const Shape& shape, const Values& values) {
  return holding(device, dtype, shape, values).tensor();
}

Values forward(Device& device, const AttentionProblem& p, const Operands& x,
               const SdpaParams& params) {
  const AttentionSizes& s = p.sizes;
  const Guarded q = holding(device, p.dtype, {s.batch, s.heads, s.queries, s.width}, x.q);
  const Guarded k = holding(device, p.dtype, {s.batch, s.kv_heads, s.keys, s.width}, x.k);
  const Guarded v = holding(device, p.dtype, {s.batch, s.kv_heads, s.keys, s.value_width}, x.v);
  const Guarded out(device, p.dtype, {s.batch, s.queries, s.heads, s.value_width});
  device.ops().sdpa(out, q, k, v, p.mask, params);
  return out.get();
}

// log sum exp of a query's masked scores, which the mask's function gives.
Values lse_of(const AttentionProblem& p, const Operands& x, const SdpaParams& params) {
  const AttentionSizes& s = p.sizes;
  Values out;
  for (int64_t row = 0; row < s.batch * s.heads * s.queries; ++row) {
    const int64_t t = row % s.queries, h = row / s.queries % s.heads, b = row / s.queries / s.heads;
    const int64_t kv = b * s.kv_heads + h / (s.heads / s.kv_heads);
    double total = 0;
    for (int64_t key = 0; key < s.keys; ++key) {
      if (!p.mask_case.allowed(b, h, t, key, s)) continue;
      double score = 0;
      for (int64_t d = 0; d < s.width; ++d) {
        score += x.q[index(row * s.width + d)] * x.k[index((kv * s.keys + key) * s.width + d)];
      }
      score *= params.scale;
      if (params.softcap) score = *params.softcap * std::tanh(score / *params.softcap);
      total += std::exp(score + p.mask_case.added(t, key));
    }
    out.push_back(total > 0 ? std::log(total) : 0);
  }
  return out;
}

// d_q, d_k and d_v.
std::vector<Values> backward(Device& device, const AttentionProblem& p, const Operands& x,
                             const Values& result, const Values& lse, const SdpaParams& params,
                             Layout layout) {
  const AttentionSizes& s = p.sizes;
  const Shape shape_q{s.batch, s.heads, s.queries, s.width};
  const Shape shape_k{s.batch, s.kv_heads, s.keys, s.width};
  const Shape shape_v{s.batch, s.kv_heads, s.keys, s.value_width};
  const Shape shape_out{s.batch, s.queries, s.heads, s.value_width};
  const Guarded q = holding(device, p.dtype, shape_q, x.q, layout);
  const Guarded k = holding(device, p.dtype, shape_k, x.k, layout);
  const Guarded v = holding(device, p.dtype, shape_v, x.v, layout);
  const Guarded out = holding(device, p.dtype, shape_out, result, layout);
  const Guarded d_out = holding(device, p.dtype, shape_out, x.d_out, layout);
  const DType wide = p.dtype == DType::f64 ? DType::f64 : DType::f32;
  const Tensor sums =
      lse.empty() ? Tensor() : filled(device, wide, {s.batch, s.heads, s.queries}, lse);
  Guarded d_q(device, p.dtype, shape_q, layout), d_k(device, p.dtype, shape_k, layout);
  Guarded d_v(device, p.dtype, shape_v, layout);
  return run(device, {&d_q, &d_k, &d_v}, [&] {
    device.ops().sdpa_backward(d_q, d_k, d_v, d_out, q, k, v, out, sums, p.mask, params);
  });
}

double dot(const Values& a, const Values& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

TEST_CASE("sdpa_backward: the oracle against central differences, every mask, groups, softcap") {
  const auto device = open_device("oracle", 2);
  const AttentionSizes s = GENERATE(from_range(odd_sizes()));
  const MaskCase mask_case = GENERATE(from_range(mask_cases()));
  const bool softcap = GENERATE(false, true);
  const auto fully_masked = GENERATE(FullyMasked::uniform, FullyMasked::zero);
  INFO(mask_case.name << ", " << s.queries << " queries, softcap " << softcap);
  AttentionProblem p(*device, DType::f64, s, mask_case);
  p.mask.fully_masked = fully_masked;
  const SdpaParams params = params_of(s, softcap);
  const Operands x = operands_of(s, DType::f64);
  const std::vector<Values> gradients =
      backward(*device, p, x, forward(*device, p, x, params), {}, params, Layout::exchanged);
  const auto given = backward(*device, p, x, forward(*device, p, x, params), lse_of(p, x, params),
                              params, Layout::contiguous);
  for (size_t i = 0; i < 3; ++i) {
    const double norm = std::sqrt(dot(gradients[i], gradients[i]));
    require_close(given[i], gradients[i], Values(given[i].size(), 1e-12 * (1 + norm)));
    const Values direction =
        random_values(DType::f64, static_cast<int64_t>(gradients[i].size()), 5);
    const auto loss_at = [&](double step) {
      Operands moved = x;
      Values& part = i == 0 ? moved.q : i == 1 ? moved.k : moved.v;
      for (size_t n = 0; n < part.size(); ++n) part[n] += step * direction[n];
      return dot(forward(*device, p, moved, params), x.d_out);
    };
    constexpr double kStep = 1e-5;
    const double slope = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
    INFO("gradient " << i << ": central difference " << slope);
    REQUIRE(std::fabs(slope - dot(gradients[i], direction)) <= 1e-6 * norm + 1e-9);
  }
}

TEST_CASE("sdpa_backward: devices against the oracle in float64, every mask, groups, softcap") {
  const auto device = open_test_device(GENERATE(from_range(test_devices_of_products())));
  const auto oracle = open_device("oracle", 2);
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const AttentionSizes s = GENERATE(from_range(odd_sizes()));
  const MaskCase mask_case = GENERATE(from_range(mask_cases()));
  const bool softcap = GENERATE(false, true);
  INFO(mask_case.name << ", " << s.queries << " queries, softcap " << softcap);
  AttentionProblem p(*device, dtype, s, mask_case), exact(*oracle, DType::f64, s, mask_case);
  p.mask.fully_masked = exact.mask.fully_masked =
      softcap ? FullyMasked::uniform : FullyMasked::zero;
  const SdpaParams params = params_of(s, softcap);
  const Operands x = operands_of(s, dtype);
  Values out = forward(*oracle, exact, x, params);
  for (double& value : out) value = round_to(dtype, value);
  const bool with_lse = s.width % 2 == 1;
  Values lse = with_lse ? lse_of(p, x, params) : Values();
  for (double& value : lse) value = round_to(DType::f32, value);
  const auto expected = backward(*oracle, exact, x, out, lse, params, Layout::contiguous);
  const Layout layout = s.queries == 67 ? Layout::contiguous : Layout::padded;
  const auto got = backward(*device, p, x, out, lse, params, layout);
  for (size_t i = 0; i < 3; ++i) {
    double largest = 0;
    for (const double value : expected[i]) largest = std::fmax(largest, std::fabs(value));
    Values bounds;
    for (const double value : expected[i]) {
      // Sums of float32 terms of about the largest gradient's size.
      bounds.push_back(rounding_unit(dtype) * std::fabs(value) + smallest_step(dtype) +
                       128 * kU32 * (1 + largest));
    }
    INFO("gradient " << i);
    require_close(got[i], expected[i], bounds);
  }
}

TEST_CASE("sdpa_backward: what the mask hides has no gradient, exactly") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const AttentionSizes s{1, 2, 1, 70, 150, 8, 8};
  MaskCase window = mask_cases()[3];  // 70 queries from slot 4 on, three keys each
  const AttentionProblem p(*device, DType::f32, s, window);
  const Operands x = operands_of(s, DType::f32);
  const SdpaParams params = params_of(s, false);
  const auto got =
      backward(*device, p, x, forward(*device, p, x, params), {}, params, Layout::contiguous);
  for (int64_t key = 0; key < s.keys; ++key) {
    const bool seen = key >= 2 && key <= 73;
    INFO("key " << key);
    REQUIRE((got[1][index(key * s.width)] != 0) == seen);
    REQUIRE((got[2][index(key * s.value_width)] != 0) == seen);
  }
}

TEST_CASE("sdpa_backward refuses what has no gradient") {
  const auto device = open_device("cpu", 1);
  const auto tensor = [&](const Shape& shape) { return device->allocate(DType::f32, shape); };
  const Tensor q = tensor({1, 4, 3, 8}), k = tensor({1, 2, 5, 8}), out = tensor({1, 3, 4, 8});
  AttentionMask slots;
  slots.position = Position{1, {}};
  REQUIRE_THROWS_AS(device->ops().sdpa_backward(q, k, k, out, q, k, k, out, {}, slots, {}),
                    UsageError);
  REQUIRE_THROWS_AS(device->ops().sdpa_backward(q, k, k, out, q, k, k, q, {}, {}, {}), UsageError);
  REQUIRE_THROWS_AS(
      device->ops().sdpa_backward(q, k, k, out, q, k, k, out, tensor({1, 4, 4}), {}, {}),
      UsageError);
}

}  // namespace
}  // namespace plumb
