// sdpa of values that are not finite.
#include <cmath>
#include <limits>

#include "tests/kernels/support.h"

namespace plumb {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

size_t index(int64_t i) { return static_cast<size_t>(i); }

// Weights are positive, so that no product is 0 times infinity.
TEST_CASE("sdpa: infinite and NaN values reach the outputs that they feed, and no others") {
  const auto device = open_test_device(GENERATE(from_range(test_devices_of_products())));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  constexpr int64_t keys = 200, width = 40;
  Values value(index(2 * keys * width), 1.0), key = random_values(dtype, 2 * keys * 3, 8);
  value[150 * width + 7] = kInfinity;
  value[3 * width + 35] = -kInfinity;
  value[3 * width + 36] = std::nan("");
  value[10 * width + 39] = kInfinity;
  value[160 * width + 39] = -kInfinity;
  Guarded q(*device, dtype, {1, 2, 5, 3}), k(*device, dtype, {1, 2, keys, 3});
  Guarded v(*device, dtype, {1, 2, keys, width}), out(*device, dtype, {1, 5, 2, width});
  q.set(random_values(dtype, 2 * 5 * 3, 9));
  k.set(key);
  v.set(value);
  const Values y = run(*device, {&out}, [&] { device->ops().sdpa(out, q, k, v, {}, {}); })[0];
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t d = i % width, h = i / width % 2;
    INFO("head " << h << ", column " << d << ": " << y[i]);
    if (h == 0 && d == 7) REQUIRE(y[i] == kInfinity);
    else if (h == 0 && d == 35) REQUIRE(y[i] == -kInfinity);
    else if (h == 0 && (d == 36 || d == 39)) REQUIRE(std::isnan(y[i]));
    else REQUIRE(y[i] == Approx(1).epsilon(rounding_unit(dtype) + 2 * keys * kU32));
  }
}

}  // namespace
}  // namespace plumb
