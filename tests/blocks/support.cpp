#include "tests/blocks/support.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace plumb::blocks::testing {

Bench::Bench(const std::string& device)
    : device_(open_device(device, 1)),
      dtype_(device == "oracle" ? DType::f64 : DType::f32),
      context_{device_->ops()} {}

Tensor Bench::zeros(const Shape& shape) {
  const Tensor out = empty(shape);
  device_->fill(out, 0);
  return out;
}

Tensor Bench::from(const Shape& shape, const Values& values) { return from(dtype_, shape, values); }

Tensor Bench::from(DType dtype, const Shape& shape, const Values& values) {
  REQUIRE(static_cast<int64_t>(values.size()) == shape.numel());
  const Tensor host = host_tensor(dtype, shape), out = device_->allocate(dtype, shape);
  for (size_t i = 0; i < values.size(); ++i) {
    store(dtype, host.data<char>() + static_cast<int64_t>(i) * size_of(dtype), values[i]);
  }
  device_->upload(out, host.raw());
  return out;
}

Tensor Bench::random(const Shape& shape, uint32_t seed, double sigma) {
  std::mt19937 bits(seed);
  const auto uniform = [&] { return (bits() + 0.5) * 0x1p-32; };
  Values values(static_cast<size_t>(shape.numel()));
  for (double& value : values) {  // Box and Muller: the same on every library
    const double radius = std::sqrt(-2 * std::log(uniform()));
    value = sigma * radius * std::cos(6.283185307179586 * uniform());
  }
  return from(shape, values);
}

Values values_of(const Tensor& t) {
  Values out;
  const auto* base = static_cast<const char*>(t.raw());
  for_each_row(t, [&](int64_t offset) {
    for (int64_t i = 0; i < t.dim(-1); ++i) {
      out.push_back(load(t.dtype(), base + (offset + i) * size_of(t.dtype())));
    }
  });
  return out;
}

bool same_values(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && values_of(a) == values_of(b);
}

double distance(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  const Values x = values_of(a), y = values_of(b);
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double d = std::fabs(x[i] - y[i]);
    largest = d <= largest ? largest : d;  // keeps a NaN
  }
  return largest;
}

Params params_of(std::initializer_list<std::pair<const char*, Params::Value>> values) {
  Params out("test");
  for (const auto& [name, value] : values) out.set(name, value);
  return out;
}

Weights weights_of(Weights::Map tensors) {
  return Weights(std::make_shared<const Weights::Map>(std::move(tensors)), "test");
}

void run_block(Bench& bench, const std::string& block, const Params& params,
               const Operands& operands) {
  const BlockEntry* entry = find_block(block);
  REQUIRE(entry != nullptr);
  const Weights weights = weights_of(operands.weights);
  params.rewind();
  entry->run({bench.context(), params, weights, operands.inputs, operands.outputs});
  params.finish();
  weights.finish();
}

}  // namespace plumb::blocks::testing
