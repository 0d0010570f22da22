// ssd_scan_backward: the oracle against central differences of its own scan, devices against the
// oracle in float64.
#include <cmath>
#include <numeric>

#include "tests/kernels/support.h"

namespace plumb {
namespace {

struct ScanSizes {
  int64_t batch, tokens, heads, head_dim, groups, columns;
};

const std::vector<ScanSizes>& scan_sizes() {
  static const std::vector<ScanSizes> list = {{2, 1, 2, 3, 1, 5},     {2, 7, 4, 5, 2, 3},
                                              {1, 64, 2, 4, 1, 8},    {1, 65, 3, 7, 3, 9},
                                              {2, 130, 2, 70, 1, 67}, {1, 150, 4, 8, 1, 72}};
  return list;
}

constexpr size_t kOperands = 8, kState = 7;  // x, dt, b, c, a_log, d, dt_bias, state

std::array<Shape, kOperands> shapes_of(const ScanSizes& s) {
  const Shape vectors{s.batch, s.tokens, s.groups, s.columns}, heads{s.heads};
  return {Shape{s.batch, s.tokens, s.heads, s.head_dim},
          Shape{s.batch, s.tokens, s.heads},
          vectors,
          vectors,
          heads,
          heads,
          heads,
          Shape{s.batch, s.heads, s.head_dim, s.columns}};
}

// Operands, d_y and d_state_after.
struct ScanData {
  std::array<Values, kOperands> in;
  Values d_y, d_after;
};

ScanData data_of(const ScanSizes& s, DType dtype) {
  ScanData out;
  const auto shapes = shapes_of(s);
  for (size_t i = 0; i < kOperands; ++i) {
    const double sigma = i == 4 || i == 6 ? 0.5 : 1;
    out.in[i] = random_values(i == kState ? DType::f32 : dtype, shapes[i].numel(),
                              static_cast<uint32_t>(11 + i), sigma);
  }
  for (double& bias : out.in[6]) bias = round_to(dtype, bias - 1);
  out.d_y = random_values(DType::f32, shapes[0].numel(), 21);
  out.d_after = random_values(DType::f32, shapes[kState].numel(), 22);
  return out;
}

// A tensor each, between guards.
struct OnDevice {
  std::vector<Guarded> in;
  OnDevice(Device& device, const ScanSizes& s, DType dtype, const ScanData& data, Layout layout) {
    const auto shapes = shapes_of(s);
    const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
    for (size_t i = 0; i < kOperands; ++i) {
      in.push_back(holding(device, i == kState ? wide : dtype, shapes[i], data.in[i],
                           shapes[i].rank() > 1 ? layout : Layout::contiguous));
    }
  }
  SsdInputs inputs(bool with_state) const {
    return {in[0], in[1], in[2], in[3],
            in[4], in[5], in[6], with_state ? in[kState].tensor() : Tensor()};
  }
};

double dot_of(const Values& a, const Values& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

double loss_of(Device& device, const ScanSizes& s, const ScanData& data, const SsdParams& params,
               bool with_state) {
  const OnDevice operands(device, s, DType::f64, data, Layout::contiguous);
  const auto shapes = shapes_of(s);
  const Guarded y(device, DType::f64, shapes[0]), after(device, DType::f64, shapes[kState]);
  device.ops().ssd_scan(y, after, operands.inputs(with_state), params);
  return dot_of(y.get(), data.d_y) + (with_state ? dot_of(after.get(), data.d_after) : 0);
}

// The gradients of all operands; of the state, and from d_state_after, only with one.
std::vector<Values> gradients_of(Device& device, const ScanSizes& s, DType dtype,
                                 const ScanData& data, const SsdParams& params, bool with_state,
                                 Layout layout, std::optional<DType> of_y = {}) {
  const OnDevice operands(device, s, dtype, data, layout);
  const auto shapes = shapes_of(s);
  const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
  const Guarded d_y = holding(device, of_y.value_or(wide), shapes[0], data.d_y, layout);
  const Guarded d_after = holding(device, wide, shapes[kState], data.d_after, layout);
  std::vector<Guarded> to;
  std::vector<Guarded*> outputs;
  for (size_t i = 0; i < kOperands; ++i) {
    to.emplace_back(device, i == kState ? wide : dtype, shapes[i],
                    shapes[i].rank() > 1 ? layout : Layout::contiguous);
  }
  for (size_t i = 0; i + !with_state < kOperands; ++i) outputs.push_back(&to[i]);
  const SsdInputs gradients{to[0], to[1], to[2], to[3],
                            to[4], to[5], to[6], with_state ? to[kState].tensor() : Tensor()};
  return run(device, outputs, [&] {
    device.ops().ssd_scan_backward(gradients, d_y, with_state ? d_after.tensor() : Tensor(),
                                   operands.inputs(with_state), params);
  });
}

SsdParams clamped(bool clamps) {
  SsdParams out{SsdForm::chunk, 64, {}, {}};
  if (clamps) out.dt_min = 0.25, out.dt_max = 0.75;
  return out;
}

TEST_CASE("ssd_scan_backward: the oracle against central differences, clamped or not") {
  const auto device = open_device("oracle", 2);
  const ScanSizes s = GENERATE(from_range(scan_sizes()));
  const bool clamps = GENERATE(false, true), with_state = GENERATE(false, true);
  const ScanData data = data_of(s, DType::f64);
  const std::vector<Values> gradients =
      gradients_of(*device, s, DType::f64, data, clamped(clamps), with_state, Layout::exchanged);
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Values direction =
        random_values(DType::f64, static_cast<int64_t>(gradients[i].size()), 31);
    constexpr double kStep = 1e-5;
    const auto loss_at = [&](double step) {
      ScanData moved = data;
      for (size_t n = 0; n < moved.in[i].size(); ++n) moved.in[i][n] += step * direction[n];
      return loss_of(*device, s, moved, clamped(clamps), with_state);
    };
    const double slope = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
    const double norm = std::sqrt(dot_of(gradients[i], gradients[i]));
    INFO("gradient " << i << " of " << s.tokens << " tokens: central difference " << slope);
    REQUIRE(std::fabs(slope - dot_of(gradients[i], direction)) <= 1e-6 * norm + 1e-8);
  }
}

TEST_CASE("ssd_scan_backward: devices against the oracle in float64") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const auto oracle = open_device("oracle", 2);
  const ScanSizes s = GENERATE(from_range(scan_sizes()));
  const bool clamps = GENERATE(false, true), with_state = GENERATE(false, true);
  // Values of bf16: the time steps are rounded, which moves them, in float32 alone a little.
  const ScanData data = data_of(s, DType::bf16);
  const Layout layout = s.groups == 1 ? Layout::contiguous : Layout::padded;
  const auto got = gradients_of(*device, s, DType::f32, data, clamped(clamps), with_state, layout);
  const auto exact =
      gradients_of(*oracle, s, DType::f64, data, clamped(clamps), with_state, Layout::contiguous);
  REQUIRE(got.size() == exact.size());
  for (size_t i = 0; i < got.size(); ++i) {
    double largest = 0;
    for (const double value : exact[i]) largest = std::fmax(largest, std::fabs(value));
    INFO("gradient " << i << " of " << s.tokens << " tokens");
    const double terms = static_cast<double>(s.columns + s.head_dim + s.tokens);
    require_close(got[i], exact[i],
                  Values(exact[i].size(), (4 * std::sqrt(terms) + 32) * kU32 * (1 + largest)));
  }
}

// One token: with d_y in x's dtype the gradients have the bits that the chunk form has of it.
TEST_CASE("ssd_scan_backward: the step form is that of one token") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const ScanSizes s{2, 1, 4, 5, 2, 9};
  ScanData data = data_of(s, dtype);
  for (double& d : data.d_y) d = round_to(dtype, d);
  const auto made = [&](const SsdParams& params, DType of_y) {
    return gradients_of(*device, s, dtype, data, params, true, Layout::padded, of_y);
  };
  CHECK(made({SsdForm::step, 256, {}, {}}, dtype) ==
        made({SsdForm::chunk, 256, {}, {}}, DType::f32));
  const auto fails = [&](const SsdParams& params, const ScanSizes& sizes, bool with_state,
                         const std::string& said) {
    const ScanData other = data_of(sizes, dtype);
    CHECK_THROWS_WITH(
        gradients_of(*device, sizes, dtype, other, params, with_state, Layout::padded, dtype),
        Catch::Contains(said));
  };
  fails({SsdForm::step, 256, {}, {}}, {1, 2, 2, 4, 1, 8}, true, "takes one token, x has 2");
  fails({SsdForm::step, 256, {}, {}}, s, false, "needs a state");
  fails({SsdForm::step, 256, 0.25, {}}, s, true, "only the chunk form clamps");
}

}  // namespace
}  // namespace plumb
