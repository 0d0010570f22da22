// A device with tensors on it, for the tests of blocks.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "blocks/catalog.h"
#include "kernels/core/device.h"
#include "tests/catch.h"

namespace plumb::blocks::testing {

using Values = std::vector<double>;

// What a block needs, on one device: f32 on cpu, f64 on the oracle.
class Bench {
 public:
  explicit Bench(const std::string& device);

  Device& device() { return *device_; }
  Ops& ops() { return device_->ops(); }
  DType dtype() const { return dtype_; }
  Context& context() { return context_; }

  Tensor empty(const Shape& shape) { return device_->allocate(dtype_, shape); }
  Tensor zeros(const Shape& shape);
  Tensor from(const Shape& shape, const Values& values);
  Tensor from(DType dtype, const Shape& shape, const Values& values);
  // Normal values, the same for the same seed everywhere.
  Tensor random(const Shape& shape, uint32_t seed, double sigma = 1);

 private:
  std::unique_ptr<Device> device_;
  DType dtype_;
  Context context_;
};

// The elements in order, whatever the strides.
Values values_of(const Tensor& t);
bool same_values(const Tensor& a, const Tensor& b);
// Largest |a - b|.
double distance(const Tensor& a, const Tensor& b);

// Params from names and values: {{"eps", 1e-5}, {"style", "half"}}.
Params params_of(std::initializer_list<std::pair<const char*, Params::Value>> values);
Weights weights_of(Weights::Map tensors);

// Operands of a block, to run it as a recording would.
struct Operands {
  std::map<std::string, Tensor> inputs, weights, outputs;
};
// Runs a block of the catalog and checks that it read everything it was given.
void run_block(Bench& bench, const std::string& block, const Params& params,
               const Operands& operands);

// The message of the E that f throws; fails the test when it throws something else or nothing.
template <class E, class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  FAIL("nothing was thrown");
  return {};
}

}  // namespace plumb::blocks::testing
