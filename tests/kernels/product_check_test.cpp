// The oracle's products from an external library: a wrong one is found, a right one passes, and a
// missing one is computed here.
#include "kernels/oracle/product_check.h"

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "kernels/core/error.h"
#include "kernels/ops/ops.h"
#include "kernels/oracle/oracle_device.h"
#include "tests/catch.h"

namespace plumb {
namespace {

using Catch::Contains;
using Spoil = std::function<void(const Float64Gemm&)>;

// The CPU's own products, which `spoil` then changes.
class Impostor final : public Float64Products {
 public:
  explicit Impostor(bool exact, Spoil spoil = {}) : exact_(exact), spoil_(std::move(spoil)) {}
  std::string name() const override { return "impostor:0"; }
  bool exact() const override { return exact_; }
  void compute(const Float64Gemm& gemm) override {
    ++calls;
    float64_gemm(gemm, nullptr);
    if (spoil_) spoil_(gemm);
  }
  int64_t give_back() override { return 0; }
  void hold_at_most(int64_t) override {}

  int calls = 0;

 private:
  const bool exact_;
  const Spoil spoil_;
};

constexpr int64_t kRows = 70, kColumns = 90, kDepth = 50;

struct Product {
  Product(bool transposed, bool magnitudes)
      : a(kRows * kDepth), b(kDepth * kColumns), out(kRows * kColumns), magnitudes(out.size()) {
    std::mt19937_64 engine(1);
    std::normal_distribution<double> normal;
    for (double& x : a) x = normal(engine);
    for (double& x : b) x = normal(engine);
    gemm = {kRows,
            kColumns,
            kDepth,
            a.data(),
            b.data(),
            transposed ? 1 : kColumns,
            transposed ? kDepth : 1,
            out.data(),
            magnitudes ? this->magnitudes.data() : nullptr};
  }
  bool check(Impostor impostor) {
    impostor.compute(gemm);
    return check_product(gemm, impostor);
  }
  std::vector<double> a, b, out, magnitudes;
  Float64Gemm gemm;
};

TEST_CASE("a right product passes, b transposed or not") {
  for (const bool transposed : {false, true}) {
    for (const bool magnitudes : {false, true}) {
      Product product(transposed, magnitudes);
      CHECK(product.check(Impostor(true)));
    }
  }
}

TEST_CASE("one wrong element is found, wherever it is, and named with both values") {
  for (const int64_t at : {int64_t{0}, kColumns - 1, 31 * kColumns + 17, kRows * kColumns - 1}) {
    const auto spoil = [&](const Float64Gemm& g) { g.out[at] += 1e-8; };
    Product product(true, false);
    REQUIRE_THROWS_AS(product.check(Impostor(true, spoil)), DeviceError);
    REQUIRE_THROWS_WITH(product.check(Impostor(false, spoil)),
                        Contains("impostor:0") && Contains("70 x 50 x 90") &&
                            Contains(text("element (", at / kColumns, ", ", at % kColumns, ")")) &&
                            Contains("the CPU has") && Contains("PLUMB_ORACLE=cpu"));
  }
}

TEST_CASE("two elements that changed places are found") {
  Product product(true, false);
  REQUIRE_THROWS_AS(product.check(Impostor(false,
                                           [](const Float64Gemm& g) {
                                             std::swap(g.out[3 * kColumns + 4],
                                                       g.out[3 * kColumns + 5]);
                                           })),
                    DeviceError);
}

TEST_CASE("a wrong magnitude is found") {
  Product product(false, true);
  REQUIRE_THROWS_WITH(
      product.check(Impostor(true, [](const Float64Gemm& g) { g.magnitudes[100] *= 1 + 1e-9; })),
      Contains("magnitude element (1, 10)"));
}

TEST_CASE("a negative magnitude is found") {
  Product product(false, true);
  REQUIRE_THROWS_WITH(
      product.check(Impostor(true, [](const Float64Gemm& g) { g.magnitudes[100] *= -1; })),
      Contains("magnitude element (1, 10)"));
}

TEST_CASE("a column of large values hides no error of another") {
  const bool transposed = GENERATE(true, false);
  Product product(transposed, false);
  for (int64_t k = 0; k < kDepth; ++k) {
    product.b[transposed ? 3 * kDepth + k : k * kColumns + 3] *= 1e200;
    product.b[transposed ? 4 * kDepth + k : k * kColumns + 4] *= 1e-290;
  }
  CHECK(product.check(Impostor(false)));
  for (const int64_t column : {4, 7}) {
    CHECK_THROWS_AS(
        product.check(Impostor(
            false, [=](const Float64Gemm& g) { g.out[50 * kColumns + column] *= 1 + 1e-7; })),
        DeviceError);
  }
}

TEST_CASE("of many columns one element off by a float's rounding is found") {
  constexpr int64_t kMany = 40'000;
  std::vector<double> a(8, 0.5), b(8 * kMany), out(kMany);
  for (size_t i = 0; i < b.size(); ++i) b[i] = std::sin(static_cast<double>(i));
  const Float64Gemm gemm{1, kMany, 8, a.data(), b.data(), 1, 8, out.data()};
  const auto check = [&](const Spoil& spoil) {
    Impostor impostor(false, spoil);
    impostor.compute(gemm);
    return check_product(gemm, impostor);
  };
  CHECK(check({}));
  for (const int64_t at : {int64_t{0}, int64_t{8191}, int64_t{8192}, kMany - 1}) {
    CHECK_THROWS_AS(check([=](const Float64Gemm& g) { g.out[at] += 1e-7; }), DeviceError);
  }
}

TEST_CASE("who promises the bits of the CPU has to have them, others may be a last bit off") {
  const auto spoil = [](const Float64Gemm& g) {
    for (int64_t i = 0; i < g.m * g.n; ++i) g.out[i] = std::nextafter(g.out[i], 1e9);
  };
  Product product(true, false);
  REQUIRE(product.check(Impostor(false, spoil)));
  REQUIRE_THROWS_AS(product.check(Impostor(true, spoil)), DeviceError);
}

TEST_CASE("NaN and infinities are no error where the CPU has them, and one where it has not") {
  Product product(true, true);
  product.a[5 * kDepth] = std::numeric_limits<double>::quiet_NaN();
  product.a[6 * kDepth] = std::numeric_limits<double>::infinity();
  const auto other_nan = [](const Float64Gemm& g) {  // a GPU has one NaN, whatever the operands'
    for (int64_t i = 0; i < g.m * g.n; ++i) {
      if (std::isnan(g.out[i])) g.out[i] = std::nan("7");
    }
  };
  CHECK(product.check(Impostor(true, other_nan)));
  CHECK_THROWS_AS(product.check(Impostor(true,
                                         [](const Float64Gemm& g) {
                                           g.out[8 * kColumns] =
                                               std::numeric_limits<double>::quiet_NaN();
                                         })),
                  DeviceError);
  for (const double lost : {0.0, -std::numeric_limits<double>::infinity()}) {
    CHECK_THROWS_AS(product.check(Impostor(false,
                                           [=](const Float64Gemm& g) {
                                             for (int64_t j = 0; j < kColumns; ++j) {
                                               if (std::isinf(g.out[6 * kColumns + j])) {
                                                 g.out[6 * kColumns + j] = lost;
                                               }
                                             }
                                           })),
                    DeviceError);
  }
  product.b[0] = std::numeric_limits<double>::infinity();  // in every row's sum
  CHECK_FALSE(product.check(Impostor(true)));
}

// Large enough to be worth moving.
std::vector<double> linear_by(const std::shared_ptr<Float64Products>& products, int64_t rows,
                              int64_t width = 1300) {
  const auto oracle = open_oracle_device(1, products);
  const auto filled = [&](const Shape& shape) {
    const Tensor host = host_tensor(DType::bf16, shape), out = oracle->allocate(DType::bf16, shape);
    for (int64_t i = 0; i < host.numel(); ++i) {
      store(DType::bf16, host.data<char>() + 2 * i, static_cast<double>((7 * i) % 61 - 30) / 17);
    }
    oracle->upload(out, host.raw());
    return out;
  };
  const Tensor out = oracle->allocate(DType::bf16, {rows, width});
  oracle->ops().linear(out, filled({rows, width}), filled({width, width}), {});
  std::vector<double> values(static_cast<size_t>(out.numel()));
  load_all(DType::bf16, out.raw(), out.numel(), values.data());
  return values;
}

TEST_CASE("the oracle hands on large products only, and checks them") {
  const auto honest = std::make_shared<Impostor>(true);
  CHECK(linear_by(honest, 64) == linear_by(nullptr, 64));
  CHECK(honest->calls == 1);
  linear_by(honest, 63);  // enough products, of few rows
  CHECK(honest->calls == 1);
  linear_by(honest, 64, 1200);  // enough rows, few products
  CHECK(honest->calls == 1);
  const auto liar = std::make_shared<Impostor>(true, [](const Float64Gemm& g) { g.out[99] = 0; });
  CHECK_THROWS_WITH(linear_by(liar, 64), Contains("impostor:0"));
}

TEST_CASE("a device that fails leaves the product to the CPU") {
  const auto broken = std::make_shared<Impostor>(true, [](const Float64Gemm& g) {
    g.out[0] = 1;
    throw DeviceError("[copy to the device] out of order");
  });
  std::vector<std::string> reasons;
  broken->tell_failure_to([&](const std::string& why) { reasons.push_back(why); });
  for (int i = 0; i < 2; ++i) CHECK(linear_by(broken, 64) == linear_by(nullptr, 64));
  CHECK(broken->calls == 1);
  CHECK(reasons == std::vector<std::string>{"[copy to the device] out of order"});
}

// Of linear, or of the rows 2, 0 of embedding, in float64.
std::vector<double> with_weight(Device& device, DType dtype, bool linear) {
  const Tensor wide = host_tensor(DType::f64, {5, 7});
  for (int64_t i = 0; i < 35; ++i) {
    wide.data<double>()[i] = round_to(DType::f16, std::sin(static_cast<double>(i)));
  }
  const Tensor weight = device.allocate(dtype, {5, 7});
  store_all(dtype, weight.raw(), 35, wide.data<double>());
  const Tensor x = device.allocate(DType::f64, {2, 7});
  device.upload(x, wide.raw());
  const Tensor ids = device.allocate(DType::i64, {2}),
               out = device.allocate(DType::f64, {2, linear ? 5 : 7});
  ids.data<int64_t>()[0] = 2, ids.data<int64_t>()[1] = 0;
  if (linear) device.ops().linear(out, x, weight, {});
  else device.ops().embedding(out, ids, weight, 3);
  const auto* values = out.data<double>();
  return {values, values + out.numel()};
}

TEST_CASE("a float64 run takes a matrix as it was recorded, on the oracle alone") {
  const auto oracle = open_device("oracle"), cpu = open_device("cpu");
  for (const bool linear : {true, false}) {
    const std::vector<double> expected = with_weight(*oracle, DType::f64, linear);
    CHECK(with_weight(*oracle, DType::f16, linear) == expected);
    CHECK(with_weight(*oracle, DType::f32, linear) == expected);
    CHECK_THROWS_AS(with_weight(*oracle, DType::i64, linear), UsageError);
    CHECK_THROWS_AS(with_weight(*cpu, DType::f16, linear), UsageError);
  }
}

}  // namespace
}  // namespace plumb
