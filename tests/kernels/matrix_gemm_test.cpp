// linear and matmul of several blocks on a model of the matrix unit against the product of pairs.
#include <cmath>

#include "kernels/cpu/cpu_device.h"
#include "tests/kernels/amx_model.h"
#include "tests/kernels/support.h"

namespace plumb::cpu {
namespace {

Values integers(int64_t n, uint32_t seed) {
  Values values = random_values(DType::f64, n, seed, 2);
  for (double& v : values) v = std::nearbyint(v);
  return values;
}

// Sums of integers are exact in every order.
TEST_CASE("matrix unit: linear over several blocks equals the product of pairs") {
  if (!amx_model()) return;  // this processor multiplies no pairs of bf16
  struct Sizes {
    int64_t m, n, k;
  };
  const Sizes s = GENERATE(Sizes{5, 33, 2}, Sizes{600, 130, 70}, Sizes{40, 1100, 1030},
                           Sizes{33, 70, 1536}, Sizes{70, 1024, 512});
  const Layout layout = GENERATE(Layout::contiguous, Layout::padded);
  const bool with_bias = GENERATE(false, true);
  std::vector<Values> results;
  for (const Simd* simd : {amx_model(), &simd_avx512_bf16()}) {
    const auto device = open_cpu_device_of(*simd, 3);
    Guarded x(*device, DType::bf16, {s.m, s.k}, layout);
    Guarded weight(*device, DType::bf16, {s.n, s.k}, layout);
    Guarded bias(*device, DType::bf16, {s.n}), out(*device, DType::bf16, {s.m, s.n}, layout);
    x.set(integers(s.m * s.k, 1));
    weight.set(integers(s.n * s.k, 2));
    bias.set(integers(s.n, 3));
    results.push_back(run(*device, {&out}, [&] {
      device->ops().linear(out, x, weight, with_bias ? bias.tensor() : Tensor());
    })[0]);
  }
  REQUIRE(results[0] == results[1]);
}

TEST_CASE("matrix unit: matmul over several blocks equals the product of pairs") {
  if (!amx_model()) return;
  const int64_t m = GENERATE(5, 300), n = GENERATE(40, 160), k = GENERATE(64, 545, 1024);
  const bool transpose = GENERATE(true, false);
  const Layout layout = GENERATE(Layout::contiguous, Layout::exchanged, Layout::padded);
  std::vector<Values> results;
  for (const Simd* simd : {amx_model(), &simd_avx512_bf16()}) {
    const auto device = open_cpu_device_of(*simd, 2);
    Guarded a(*device, DType::bf16, {1, 2, m, k}, layout);
    const Shape b_shape = transpose ? Shape{1, 1, n, k} : Shape{1, 1, k, n};
    Guarded b(*device, DType::bf16, b_shape, layout);
    Guarded out(*device, DType::bf16, {1, 2, m, n}, layout);
    a.set(integers(2 * m * k, 4));
    b.set(integers(n * k, 5));
    results.push_back(run(*device, {&out}, [&] { device->ops().matmul(out, a, b, transpose); })[0]);
  }
  REQUIRE(results[0] == results[1]);
}

// Operands are cut out of larger tensors that are NaN elsewhere.
TEST_CASE("matrix unit: products read nothing behind their operands") {
  if (!amx_model()) return;
  const int64_t m = GENERATE(5, 32), n = GENERATE(31, 32), k = GENERATE(31, 32, 33, 545);
  const bool transpose = GENERATE(true, false);
  const auto device = open_cpu_device_of(*amx_model(), 1);
  const auto ones = [&](int64_t rows, int64_t columns) {
    const Shape shape{1, 1, rows + 2, columns + 35};
    Guarded whole(*device, DType::bf16, shape);
    Values values(static_cast<size_t>(shape.numel()), std::nan(""));
    for (int64_t i = 0; i < rows * columns; ++i) {
      values[static_cast<size_t>(i / columns * (columns + 35) + i % columns)] = 1;
    }
    whole.set(values);
    return whole;
  };
  const auto cut = [](const Guarded& whole, int64_t rows, int64_t columns) {
    return whole.tensor().slice(2, 0, rows).slice(3, 0, columns);
  };
  const Guarded a = ones(m, k), b = transpose ? ones(n, k) : ones(k, n);
  Guarded out(*device, DType::bf16, {1, 1, m, n});
  const Tensor right = transpose ? cut(b, n, k) : cut(b, k, n);
  const Values y =
      run(*device, {&out}, [&] { device->ops().matmul(out, cut(a, m, k), right, transpose); })[0];
  REQUIRE(y == Values(y.size(), round_to(DType::bf16, static_cast<double>(k))));
}

}  // namespace
}  // namespace plumb::cpu
