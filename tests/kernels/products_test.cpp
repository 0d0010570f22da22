// linear and matmul.
#include <cmath>
#include <limits>

#include "kernels/core/error.h"
#include "tests/kernels/support.h"

namespace plumb {
namespace {

struct Sizes {
  int64_t m, n, k;
};

// Exact sums, and any float32 order of k products: gamma_k sum |a b|.
struct Sum {
  double value = 0, magnitude = 0;
  void add(double product) {
    value += product;
    magnitude += std::fabs(product);
  }
};

struct Expected {
  Values exact, model, bound;
  void push(DType dtype, const Sum& sum, int64_t terms) {
    exact.push_back(sum.value);
    model.push_back(round_to(dtype, sum.value));
    bound.push_back(rounding_unit(dtype) * std::fabs(sum.value) + smallest_step(dtype) +
                    static_cast<double>(terms + 2) * kU32 * sum.magnitude);
  }
};

size_t index(int64_t i) { return static_cast<size_t>(i); }

TEST_CASE("linear: x W^T + bias, every path, any layout") {
  const auto device = open_test_device(GENERATE(from_range(test_devices_of_products())));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  // A few rows; one block; ragged blocks over k, n and m; large enough for a library.
  const Sizes s =
      GENERATE(Sizes{1, 5, 3}, Sizes{3, 129, 1100}, Sizes{4, 64, 32}, Sizes{11, 33, 70},
               Sizes{6, 16, 256}, Sizes{13, 300, 517}, Sizes{201, 17, 31}, Sizes{9, 8, 0},
               Sizes{0, 8, 4}, Sizes{5, 0, 4}, Sizes{270, 260, 129}, Sizes{4100, 3, 7});
  const Layout layout = GENERATE(Layout::contiguous, Layout::padded);
  const bool with_bias = GENERATE(true, false);
  const Values a = random_values(dtype, s.m * s.k, 1), b = random_values(dtype, s.n * s.k, 2);
  const Values c = random_values(dtype, s.n, 3);
  Guarded x(*device, dtype, {s.m, s.k}, layout), weight(*device, dtype, {s.n, s.k}, layout);
  Guarded bias(*device, dtype, {s.n}), out(*device, dtype, {s.m, s.n}, layout);
  x.set(a);
  weight.set(b);
  bias.set(c);
  const Tensor given = with_bias ? bias.tensor() : Tensor();
  const Values y = run(*device, {&out}, [&] { device->ops().linear(out, x, weight, given); })[0];
  Expected e;
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      Sum sum;
      for (int64_t p = 0; p < s.k; ++p) sum.add(a[index(i * s.k + p)] * b[index(j * s.k + p)]);
      if (with_bias) sum.add(c[index(j)]);
      e.push(dtype, sum, s.k);
    }
  }
  require_close(y, e.exact, e.bound);
  require_conforms(dtype, y, e.model, {s.k});
}

// Devices may make one launch of products of the same row.
TEST_CASE("linear: successive products of one row are those of each alone") {
  const auto device = open_test_device(GENERATE(from_range(test_devices_of_products())));
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  Ops& ops = device->ops();
  constexpr int64_t kInner = 64;
  const Guarded x = holding(*device, dtype, {1, kInner}, random_values(dtype, kInner, 1));
  std::vector<Guarded> weights, biases, outs;
  for (const int64_t columns : {5, 24, 1, 9, 33, 8, 9}) {
    const auto seed = static_cast<unsigned>(10 * columns + static_cast<int64_t>(outs.size()));
    weights.push_back(
        holding(*device, dtype, {columns, kInner}, random_values(dtype, columns * kInner, seed)));
    biases.push_back(holding(*device, dtype, {columns}, random_values(dtype, columns, seed + 1)));
    outs.emplace_back(*device, dtype, Shape{1, columns});
  }
  const auto product = [&](size_t i) {
    ops.linear(outs[i], x, weights[i], i % 2 == 0 ? biases[i].tensor() : Tensor());
  };
  std::vector<Values> alone;
  for (size_t i = 0; i < outs.size(); ++i) {
    product(i);
    alone.push_back(outs[i].get());
    outs[i].set(Values(alone[i].size(), -1));
  }
  SECTION("all of them, then an op that reads two") {
    Guarded sum(*device, dtype, {1, 9});
    for (size_t i = 0; i < outs.size(); ++i) product(i);
    ops.add(sum, outs[3], outs[6]);
    for (size_t i = 0; i < outs.size(); ++i) REQUIRE(outs[i].get() == alone[i]);
    const Values both = sum.get();
    for (size_t i = 0; i < both.size(); ++i) {
      REQUIRE(both[i] == round_to(dtype, alone[3][i] + alone[6][i]));
    }
  }
  SECTION("the row changes in between") {
    Guarded other = holding(*device, dtype, {1, kInner}, x.get());
    ops.linear(outs[0], other, weights[0], biases[0]);
    other.set(Values(kInner, 0));
    ops.linear(outs[1], other, weights[1]);
    REQUIRE(outs[0].get() == alone[0]);
    REQUIRE(outs[1].get() == Values(24, 0));
  }
  SECTION("one writes what another reads") {
    const Guarded square =
        holding(*device, dtype, {kInner, kInner}, random_values(dtype, kInner * kInner, 3));
    Guarded row(*device, dtype, {1, kInner});
    ops.linear(row, x, square);
    const Values replaced = row.get();
    product(1);
    ops.linear(weights[1].tensor().slice(0, 2, 3), x, square);
    product(1);
    const Values after = outs[1].get();
    REQUIRE(after[2] != alone[1][2]);
    REQUIRE(weights[1].tensor().dim(0) == 24);
    for (size_t i = 0; i < after.size(); ++i) REQUIRE((i == 2 || after[i] == alone[1][i]));
    const Values now = weights[1].get();
    REQUIRE(std::equal(replaced.begin(), replaced.end(), now.begin() + 2 * kInner));
  }
  SECTION("recorded launches hold the last of them") {
    const auto graph = device->capture([&] {
      product(0);
      product(1);
    });
    if (!graph) return;
    for (const size_t i : {0, 1}) outs[i].set(Values(alone[i].size(), -1));
    graph->replay();
    REQUIRE(outs[0].get() == alone[0]);
    REQUIRE(outs[1].get() == alone[1]);
  }
}

// Devices may read weights ahead of their queue, but not these.
TEST_CASE("linear: weights that the op before has just written") {
  const auto device = open_test_device(GENERATE(from_range(test_devices_of_products())));
  constexpr int64_t kColumns = 96, kInner = 1024;
  const Guarded x =
      holding(*device, DType::bf16, {1, kInner}, random_values(DType::bf16, kInner, 1));
  const Guarded stored = holding(*device, DType::f32, {kColumns, kInner},
                                 random_values(DType::f32, kColumns * kInner, 2));
  Guarded weight(*device, DType::bf16, {kColumns, kInner}),
      out(*device, DType::bf16, {1, kColumns});
  device->ops().cast(weight, stored);
  weight.get();  // waits
  device->ops().linear(out, x, weight);
  const Values expected = out.get();
  for (int i = 0; i < 20; ++i) {
    weight.fill(0);
    device->ops().cast(weight, stored);
    device->ops().linear(out, x, weight);
    REQUIRE(out.get() == expected);
  }
}

TEST_CASE("linear: inputs of rank 3 with exchanged axes") {
  const auto device = open_test_device(GENERATE(from_range(test_devices_of_products())));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const int64_t tokens = GENERATE(1, 9);
  const Shape shape{3, tokens, 40};
  // Integers, whose sums are exact: a device may take another product for another layout.
  Values a = random_values(dtype, shape.numel(), 4), b = random_values(dtype, 24 * 40, 5);
  for (double& v : a) v = std::round(v);
  for (double& v : b) v = std::round(v);
  Guarded flat(*device, dtype, shape), x(*device, dtype, shape, Layout::exchanged);
  Guarded weight(*device, dtype, {24, 40});
  Guarded expected(*device, dtype, {3, tokens, 24}),
      out(*device, dtype, {3, tokens, 24}, Layout::exchanged);
  flat.set(a);
  x.set(a);
  weight.set(b);
  device->ops().linear(expected, flat, weight);
  run(*device, {&out}, [&] { device->ops().linear(out, x, weight); });
  REQUIRE(out.get() == expected.get());
}

// Integers whose sums stay within the float32 significand are exact in every order; the results
// must be.
TEST_CASE("linear: integer-valued inputs are exact") {
  const auto device = open_test_device(GENERATE(from_range(test_devices_of_products())));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const Sizes s = GENERATE(Sizes{2, 70, 900}, Sizes{50, 300, 700}, Sizes{64, 256, 1024});
  Values a = random_values(DType::f64, s.m * s.k, 6, 2),
         b = random_values(DType::f64, s.n * s.k, 7, 2);
  for (double& v : a) v = std::nearbyint(v);
  for (double& v : b) v = std::nearbyint(v);
  Guarded x(*device, dtype, {s.m, s.k}), weight(*device, dtype, {s.n, s.k}),
      out(*device, dtype, {s.m, s.n});
  x.set(a);
  weight.set(b);
  const Values y = run(*device, {&out}, [&] { device->ops().linear(out, x, weight); })[0];
  Values exact;
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      Sum sum;
      for (int64_t p = 0; p < s.k; ++p) sum.add(a[index(i * s.k + p)] * b[index(j * s.k + p)]);
      exact.push_back(round_to(dtype, sum.value));
    }
  }
  REQUIRE(y == exact);
}

TEST_CASE("linear: NaN and infinity reach the outputs that they feed, and no others") {
  const auto device = open_test_device(GENERATE(from_range(test_devices_of_products())));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const int64_t m = GENERATE(2, 7, 40);
  constexpr int64_t n = 19, k = 33;
  Values a(index(m * k), 1.0), b(index(n * k), 0.5);
  a[index(k + 32)] = std::nan("");
  b[index(18 * k + 5)] = std::numeric_limits<double>::infinity();
  Guarded x(*device, dtype, {m, k}), weight(*device, dtype, {n, k}), out(*device, dtype, {m, n});
  x.set(a);
  weight.set(b);
  const Values y = run(*device, {&out}, [&] { device->ops().linear(out, x, weight); })[0];
  for (int64_t i = 0; i < m * n; ++i) {
    const double v = y[index(i)];
    if (i / n == 1) REQUIRE(std::isnan(v));
    else if (i % n == 18) REQUIRE(std::isinf(v));
    else REQUIRE(v == 16.5);
  }
}

TEST_CASE("matmul: both forms, grouped heads, strided outputs") {
  const auto device = open_test_device(GENERATE(from_range(test_devices_of_products())));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const Sizes s = GENERATE(Sizes{1, 1, 1}, Sizes{5, 37, 16}, Sizes{11, 11, 64}, Sizes{67, 130, 300},
                           Sizes{3, 9, 0}, Sizes{3, 0, 9});
  const bool transpose = GENERATE(true, false);
  const Layout layout = GENERATE(Layout::contiguous, Layout::exchanged, Layout::padded);
  constexpr int64_t batch = 2, heads = 4, kv_heads = 2;
  const Shape b_shape =
      transpose ? Shape{batch, kv_heads, s.n, s.k} : Shape{batch, kv_heads, s.k, s.n};
  const Values a = random_values(dtype, batch * heads * s.m * s.k, 8);
  const Values b = random_values(dtype, b_shape.numel(), 9);
  Guarded x(*device, dtype, {batch, heads, s.m, s.k}, layout), z(*device, dtype, b_shape, layout);
  Guarded out(*device, dtype, {batch, heads, s.m, s.n}, layout);
  x.set(a);
  z.set(b);
  const Values y = run(*device, {&out}, [&] { device->ops().matmul(out, x, z, transpose); })[0];
  Expected e;
  for (int64_t head = 0; head < batch * heads; ++head) {
    const int64_t kv = head / heads * kv_heads + head % heads / (heads / kv_heads);
    for (int64_t i = 0; i < s.m; ++i) {
      for (int64_t j = 0; j < s.n; ++j) {
        Sum sum;
        for (int64_t p = 0; p < s.k; ++p) {
          const int64_t at = transpose ? j * s.k + p : p * s.n + j;
          sum.add(a[index((head * s.m + i) * s.k + p)] * b[index(kv * s.n * s.k + at)]);
        }
        e.push(dtype, sum, s.k);
      }
    }
  }
  require_close(y, e.exact, e.bound);
  require_conforms(dtype, y, e.model, {s.k});
}

TEST_CASE("products refuse shapes that do not fit") {
  const auto device = open_test_device("cpu");
  Ops& ops = device->ops();
  Guarded x(*device, DType::f32, {2, 8}), weight(*device, DType::f32, {4, 7}),
      out(*device, DType::f32, {2, 4});
  REQUIRE_THROWS_AS(ops.linear(out, x, weight), UsageError);
  Guarded right(*device, DType::f32, {4, 8}), bias(*device, DType::f32, {3});
  REQUIRE_THROWS_AS(ops.linear(out, x, right, bias), UsageError);
  REQUIRE_NOTHROW(ops.linear(out, x, right));
  Guarded a(*device, DType::f32, {1, 3, 2, 8}), b(*device, DType::f32, {1, 2, 4, 8});
  Guarded scores(*device, DType::f32, {1, 3, 2, 4});
  REQUIRE_THROWS_AS(ops.matmul(scores, a, b, true), UsageError);  // 3 heads, 2 key-value heads
  Guarded wide(*device, DType::f64, {2, 8});
  REQUIRE_THROWS_AS(ops.linear(wide, wide, wide), Error);
}

}  // namespace
}  // namespace plumb
