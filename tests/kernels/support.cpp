#include "tests/kernels/support.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace plumb {
void Guarded::set(const Values& values) {
  const Tensor& t = tensor();
  REQUIRE(static_cast<int64_t>(values.size()) == t.numel());
  std::vector<uint8_t> bytes(static_cast<size_t>(t.bytes()));
  store_all(t.dtype(), bytes.data(), t.numel(), values.data());
  put(bytes.data());
}

Values Guarded::get() const {
  const Tensor& t = tensor();
  Values values(static_cast<size_t>(t.numel()));
  load_all(t.dtype(), bytes().data(), t.numel(), values.data());
  return values;
}

void Guarded::require_guards() const { REQUIRE(damage() == ""); }

Guarded holding(Device& device, DType dtype, const Shape& shape, const Values& values,
                Layout layout) {
  Guarded out(device, dtype, shape, layout);
  out.set(values);
  return out;
}

Values random_values(DType dtype, int64_t count, uint32_t seed, double sigma) {
  std::mt19937 bits(seed);
  const auto uniform = [&] { return (bits() + 0.5) * 0x1p-32; };
  Values values(static_cast<size_t>(count));
  for (double& value :
       values) {  // Box and Muller: std::normal_distribution differs among libraries
    const double radius = std::sqrt(-2 * std::log(uniform()));
    value = round_to(dtype, sigma * radius * std::cos(6.283185307179586 * uniform()));
  }
  return values;
}

std::vector<Values> run(Device& device, const std::vector<Guarded*>& outputs,
                        const std::function<void()>& op) {
  std::vector<std::vector<uint8_t>> first;
  for (const uint8_t poison : {uint8_t{0xff}, uint8_t{0}}) {
    device.ops().arena().set_poison(poison);
    for (Guarded* out : outputs) out->fill(poison);
    op();
    device.synchronize();
    for (size_t i = 0; i < outputs.size(); ++i) {
      outputs[i]->require_guards();
      if (poison) first.push_back(outputs[i]->bytes());
      else REQUIRE(outputs[i]->bytes() == first[i]);
    }
  }
  device.ops().arena().set_poison(std::nullopt);
  std::vector<Values> values;
  for (const Guarded* out : outputs) values.push_back(out->get());
  return values;
}

void require_close(const Values& y, const Values& exact, const Values& bound) {
  REQUIRE(y.size() == exact.size());
  REQUIRE(y.size() == bound.size());
  for (size_t i = 0; i < y.size(); ++i) {
    const bool same = std::isnan(exact[i]) ? std::isnan(y[i]) : y[i] == exact[i];
    const bool close = std::fabs(y[i] - exact[i]) <= bound[i];  // false for NaN
    if (same || (std::isfinite(exact[i]) && close)) continue;
    INFO("element " << i << " of " << y.size() << ": " << y[i] << ", exact " << exact[i]
                    << ", error " << y[i] - exact[i] << ", allowed " << bound[i]);
    REQUIRE(close);
  }
}

void require_conforms(DType dtype, const Values& y, const Values& model,
                      const std::vector<int64_t>& stages) {
  if (size_of(dtype) != 2) return;
  REQUIRE(y.size() == model.size());
  double accumulated = 0;
  for (const int64_t terms : stages)
    accumulated += 0.3 * std::sqrt(static_cast<double>(terms)) * kU32;
  const double n = static_cast<double>(y.size());
  const double expected = n * (0.003 + 3 * accumulated / unit_roundoff(dtype));
  const double allowed = std::max(8.0, expected + 3 * std::sqrt(expected));
  double differ = 0;
  for (size_t i = 0; i < y.size(); ++i) differ += y[i] != model[i] && !std::isnan(model[i]);
  INFO(differ << " of " << n << " elements differ from the rounded model, allowed " << allowed);
  REQUIRE(differ <= allowed);
}

double rounding_unit(DType dtype) {
  return dtype == DType::f32 ? kU32 : unit_roundoff(dtype) + 1.01 * kU32;
}

double smallest_step(DType dtype) {
  const DTypeInfo& format = info(dtype);
  return std::ldexp(1.0, format.min_exponent - format.significand_bits);
}

}  // namespace plumb
