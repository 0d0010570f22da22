#include "harness/ops/formula_error.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/ops/map_call.h"
#include "kernels/ops/ops.h"

namespace plumb::harness {
namespace {

constexpr double kNumber = 0.3125, kShift = 55.5;  // of the call: what every dtype has
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Every 4093th of all values: about 2000 of each power of 2, subnormal ones and NaN too.
std::vector<double> first_inputs() {
  std::vector<double> out;
  for (uint64_t bits = 0; bits >> 32 == 0; bits += 4093) {
    out.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  const auto around = [&](double centre, int steps) {
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(centre));
    for (int i = -steps; i <= steps; ++i) {
      const auto near = std::bit_cast<float>(bits + static_cast<uint32_t>(i));
      out.insert(out.end(), {near, -near});
    }
  };
  around(1, 1000);
  for (int k = 1; k < 4000; ++k) {
    around(k * M_PI_2, 2);
    around(k * 0.5, 2);
  }
  return out;
}

// To go with those: b of which a^b is anywhere in float32's range, and other values.
std::vector<double> second_inputs(const std::vector<double>& first) {
  std::vector<double> out;
  uint32_t bits = 0;
  for (const double a : first) {
    bits += 2654435769u;  // 2^32 over the golden ratio
    const double exponent = bits * 0x1p-32 * 300 - 160;
    const double power = exponent / std::log2(std::fabs(a));
    out.push_back(bits % 2 ? std::bit_cast<float>(bits) : static_cast<float>(power));
  }
  return out;
}

// To go with both: the negative of their product, rounded, of which one rounding leaves the rest,
// and other values.
std::vector<double> third_inputs(const std::vector<double>& first,
                                 const std::vector<double>& second) {
  std::vector<double> out;
  for (size_t i = 0; i < first.size(); ++i) {
    out.push_back(i % 2 ? second[(i + 7) % second.size()]
                        : static_cast<float>(-first[i] * second[i]));
  }
  return out;
}

std::vector<double> run(OpId op, Device& device, DType dtype,
                        const std::vector<std::vector<double>>& inputs) {
  const int64_t count = std::ssize(inputs[0]);
  const Tensor host = host_tensor(dtype, {count}), out = device.allocate(dtype, {count});
  std::vector<Tensor> in;
  for (const std::vector<double>& values : inputs) {
    const DType of_input = in.empty() && has_condition(op) ? DType::boolean : dtype;
    store_all(of_input, host.raw(), count, values.data());
    in.push_back(device.allocate(of_input, {count}));
    device.upload(in.back(), host.raw());
    device.synchronize();
  }
  if (in.size() == 3) device.ops().ternary(op, out, in[0], in[1], in[2]);
  else if (in.size() == 2) device.ops().binary(op, out, in[0], in[1], kNumber);
  else device.ops().unary(op, out, in[0], kNumber, kShift);
  device.synchronize();
  device.download(host.raw(), out);
  std::vector<double> result(inputs[0].size());
  load_all(dtype, host.raw(), count, result.data());
  return result;
}

// Beyond the largest float32, infinity is the next value.
double ulps_between(double y, double exact) {
  if (std::isnan(y) || std::isnan(exact)) return std::isnan(y) && std::isnan(exact) ? 0 : kInfinity;
  const auto in_range = [](double v) { return std::fmax(-0x1p128, std::fmin(v, 0x1p128)); };
  const double most = info(DType::f32).max, target = in_range(exact);
  const double step = spacing(DType::f32, std::fmin(std::fabs(target), most));
  return std::fabs(in_range(y) - target) / step;
}

double ulps_of(Formula formula) {
  return with_formula(formula, []<class F>() { return F::kUlps; });
}

// The functions of GPUs' libraries are less exact than those of kernels/cpu.
double allowed_ulps(Formula formula, const Device& device) {
  constexpr double kOfLibraries = 2.5, kOfFloat64 = 1e-6;
  const double ulps = ulps_of(formula);
  const bool from_library = ulps == formulas::kOneFunction && device.name() != "cpu";
  return (from_library ? kOfLibraries : ulps) + kOfFloat64;
}

}  // namespace

std::optional<FormulaError> formula_error(OpId op, Device& device, Device& oracle) {
  if (!has_one_formula(op) || is_fused(op) || gives_bool(op)) return {};
  if (ulps_of(*row_of(op).formula) == formulas::kUnmeasured) return {};
  std::vector<std::vector<double>> inputs{first_inputs()};
  const int count = row_of(op).operands.count - 1;
  if (count > 1) inputs.push_back(second_inputs(inputs[0]));
  if (count > 2) inputs.push_back(third_inputs(inputs[0], inputs[1]));
  const std::vector<double> found = run(op, device, DType::f32, inputs);
  const std::vector<double> exact = run(op, oracle, DType::f64, inputs);
  FormulaError out{.allowed = allowed_ulps(*row_of(op).formula, device)};
  for (size_t i = 0; i < found.size(); ++i) {
    const double ulps = ulps_between(found[i], exact[i]);
    if (ulps <= out.ulps) continue;
    out.ulps = ulps;
    for (size_t input = 0; input < inputs.size(); ++input) out.at[input] = inputs[input][i];
  }
  return out;
}

}  // namespace plumb::harness
