// gemm against plain loops: both operands stored either way, in every layout, batches, what is
// added to the product, few rows and many; what is refused.
#include <cmath>
#include <limits>

#include "kernels/core/error.h"
#include "tests/kernels/support.h"

namespace plumb {
namespace {

struct Extents {
  int64_t batches, rows, columns, inner;
};

size_t index(int64_t i) { return static_cast<size_t>(i); }

// x / (1 + e^-x)
double silu(double x) { return x / (1 + std::exp(-x)); }

TEST_CASE("gemm: R(f(alpha a b + beta c + bias)), operands stored either way") {
  const auto device = open_test_device(GENERATE(from_range(test_devices_of_products())));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const Layout layout = GENERATE(Layout::contiguous, Layout::padded, Layout::exchanged);
  const bool transpose_a = GENERATE(false, true), transpose_b = GENERATE(false, true);
  const Extents n = GENERATE(Extents{2, 3, 17, 33}, Extents{1, 70, 65, 40}, Extents{3, 9, 1, 1});
  const auto stored = [&](bool turned, int64_t rows, int64_t columns) {
    return turned ? Shape{n.batches, columns, rows} : Shape{n.batches, rows, columns};
  };
  const Shape a_shape = stored(transpose_a, n.rows, n.inner);
  const Shape b_shape = stored(transpose_b, n.inner, n.columns);
  const Shape shape{n.batches, n.rows, n.columns};
  const Values a = random_values(dtype, a_shape.numel(), 1),
               b = random_values(dtype, b_shape.numel(), 2),
               c = random_values(dtype, shape.numel(), 3),
               bias = random_values(dtype, n.columns, 4);
  const GemmParams params{0.75, -0.5, transpose_a, transpose_b, Activation::silu};
  Values exact, bound, plain, plain_bound;
  for (int64_t i = 0; i < shape.numel(); ++i) {
    const int64_t column = i % n.columns, row = i / n.columns % n.rows;
    const int64_t batch = i / n.columns / n.rows;
    double sum = 0, magnitudes = 0;
    for (int64_t k = 0; k < n.inner; ++k) {
      const int64_t left = transpose_a ? k * n.rows + row : row * n.inner + k;
      const int64_t right = transpose_b ? column * n.inner + k : k * n.columns + column;
      const double term =
          a[index(batch * n.rows * n.inner + left)] * b[index(batch * n.inner * n.columns + right)];
      sum += term;
      magnitudes += std::fabs(term);
    }
    const double other = params.beta * c[index(i)], added = bias[index(column)];
    const double y = params.alpha * sum + other + added;
    const double error = static_cast<double>(n.inner + 4) * kU32 *
                         (params.alpha * magnitudes + std::fabs(other) + std::fabs(added));
    exact.push_back(silu(y));
    // silu's slope is at most 1.1; a GPU's for 16 bits is off by 2^-19.
    bound.push_back(rounding_unit(dtype) * std::fabs(silu(y)) + smallest_step(dtype) + 1.1 * error +
                    0x1p-18 * std::fabs(y));
    plain.push_back(sum);
    plain_bound.push_back(rounding_unit(dtype) * std::fabs(sum) + smallest_step(dtype) +
                          static_cast<double>(n.inner) * kU32 * magnitudes);
  }
  Guarded left = holding(*device, dtype, a_shape, a, layout),
          right = holding(*device, dtype, b_shape, b, layout),
          other = holding(*device, dtype, shape, c, layout), out(*device, dtype, shape, layout);
  Guarded added = holding(*device, dtype, {n.columns}, bias);
  Ops& ops = device->ops();
  require_close(run(*device, {&out}, [&] { ops.gemm(out, left, right, other, added, params); })[0],
                exact, bound);
  // c in out's place, and one that is not read.
  ops.gemm(other, left, right, other, added, params);
  CHECK(other.get() == out.get());
  other.set(Values(c.size(), std::numeric_limits<double>::quiet_NaN()));
  const GemmParams alone{1, 0, transpose_a, transpose_b, {}};
  require_close(run(*device, {&out}, [&] { ops.gemm(out, left, right, other, {}, alone); })[0],
                plain, plain_bound);
}

TEST_CASE("gemm refuses what does not fit, in the letters of how its operands are stored") {
  const auto device = open_test_device("cpu");
  Ops& ops = device->ops();
  const auto of = [&](const Shape& shape) { return device->allocate(DType::f32, shape); };
  const auto refused = [](const std::string& words, const std::function<void()>& op) {
    REQUIRE_THROWS_AS(op(), UsageError);
    REQUIRE_THROWS_WITH(op(), words);
  };
  const GemmParams turned{1, 0, true, false, {}};
  CHECK_NOTHROW(ops.gemm(of({3, 4}), of({5, 3}), of({5, 4}), {}, {}, turned));
  refused("[gemm] b has shape [3, 4], expected [*,K,N] with K = 5", [&] {
    ops.gemm(of({3, 4}), of({5, 3}), of({3, 4}), {}, {}, turned);
  });
  refused("[gemm] beta is 1, but there is no c: give one, or a beta of 0", [&] {
    ops.gemm(of({3, 4}), of({3, 5}), of({5, 4}), {}, {}, {1, 1, false, false, {}});
  });
  refused(
      "[gemm] out has shape [1, 1, 1, 3, 4], at most two axes of batches are implemented: view "
      "them as one",
      [&] {
        ops.gemm(of({1, 1, 1, 3, 4}), of({1, 1, 1, 3, 5}), of({1, 1, 1, 5, 4}), {}, {}, {});
      });
}

}  // namespace
}  // namespace plumb
