// The oracle's products on GPUs: the CPU's bits by our kernel, 1e-12 of them by a vendor's library.
#include "kernels/oracle/float64_products.h"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "kernels/core/error.h"
#include "kernels/oracle/product_check.h"
#include "tests/gpu/gpu_devices.h"

namespace plumb {
namespace {

using Catch::Contains;

// PLUMB_ORACLE for as long as it lives.
class Asked {
 public:
  explicit Asked(const char* value) { setenv("PLUMB_ORACLE", value, 1); }
  ~Asked() { unsetenv("PLUMB_ORACLE"); }
};

struct Operands {
  Operands(int64_t m, int64_t n, int64_t k, DType dtype, bool transposed)
      : a(static_cast<size_t>(m * k)), b(static_cast<size_t>(k * n * size_of(dtype))) {
    std::mt19937_64 engine(static_cast<uint64_t>(m + n + k));
    std::normal_distribution<double> normal;
    for (double& x : a) x = normal(engine);
    for (int64_t i = 0; i < k * n; ++i)
      store(dtype, &b[static_cast<size_t>(i * size_of(dtype))], normal(engine));
    gemm = {m, n, k, a.data(), b.data(), transposed ? 1 : n, transposed ? k : 1};
    gemm.b_dtype = dtype;
  }
  std::vector<double> a;
  std::vector<char> b;
  Float64Gemm gemm;
};

struct Results {
  explicit Results(const Float64Gemm& g)
      : out(static_cast<size_t>(g.m * g.n), -1), magnitudes(out.size(), -1) {}
  std::vector<double> out, magnitudes;
  bool same_bits(const Results& other) const {
    const size_t bytes = out.size() * sizeof(double);
    return std::memcmp(out.data(), other.out.data(), bytes) == 0 &&
           std::memcmp(magnitudes.data(), other.magnitudes.data(), bytes) == 0;
  }
};

template <class Compute>
Results results(Float64Gemm gemm, const Compute& compute) {
  Results out(gemm);
  gemm.out = out.out.data();
  gemm.magnitudes = out.magnitudes.data();
  compute(gemm);
  return out;
}

Results of_cpu(const Float64Gemm& gemm) {
  return results(gemm, [](const Float64Gemm& g) { float64_gemm(g, nullptr); });
}

Results of(Float64Products& products, const Float64Gemm& gemm) {
  return results(gemm, [&](const Float64Gemm& g) { products.compute(g); });
}

TEST_CASE("our kernel has the bits of the CPU, whatever the dtype, the layout and the panels") {
  const Asked gpu("gpu");
  for (const std::string& name : gpu_and_emulated_devices()) {
    const auto device = open_device(name);
    const auto products = device->float64_products();
    REQUIRE(products);
    REQUIRE(products->exact());
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      for (const bool transposed : {false, true}) {
        for (const auto& [m, n, k] : {std::tuple{1, 1, 1}, {65, 70, 17}, {3, 130, 40}, {5, 7, 0}}) {
          INFO(name << ' ' << name_of(dtype) << ' ' << m << " x " << k << " x " << n);
          const Operands operands(m, n, k, dtype, transposed);
          const Results expected = of_cpu(operands.gemm);
          for (const int64_t piece : {int64_t{8} << 20, int64_t{100}}) {
            products->hold_at_most(piece);
            CHECK(of(*products, operands.gemm).same_bits(expected));
          }
        }
      }
    }
  }
}

TEST_CASE("a device that is short of memory gets back what the oracle keeps there") {
  const Asked gpu("gpu");
  for (const std::string& name : gpu_devices()) {
    INFO(name);
    const auto device = open_device(name);
    const auto products = device->float64_products();
    const Operands operands(65, 70, 17, DType::bf16, true);
    const Results expected = of_cpu(operands.gemm);
    CHECK(of(*products, operands.gemm).same_bits(expected));
    CHECK(products->give_back() >= 8 * 65 * 70);
    CHECK(products->give_back() == 0);
    CHECK(of(*products, operands.gemm).same_bits(expected));
    CHECK_THROWS_AS(device->allocate(DType::u8, {int64_t{1} << 50}), DeviceError);
    CHECK(products->give_back() == 0);
    CHECK(of(*products, operands.gemm).same_bits(expected));
  }
}

TEST_CASE("products of several threads at once keep apart") {
  const Asked gpu("gpu");
  for (const std::string& name : gpu_devices()) {
    const auto device = open_device(name);
    const auto products = device->float64_products();
    constexpr int kThreads = 6;
    std::vector<int> right(kThreads);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        const Operands operands(20 + i, 30, 10 + i, DType::bf16, true);
        const Results expected = of_cpu(operands.gemm);
        for (int repeat = 0; repeat < 5; ++repeat) {
          right[static_cast<size_t>(i)] += of(*products, operands.gemm).same_bits(expected);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(right == std::vector<int>(kThreads, 5));
  }
}

TEST_CASE("a vendor's library is within 1e-12 of the sum of magnitudes, and is checked as such") {
  for (const std::string& name : gpu_devices()) {
    const auto device = open_device(name);
    const Asked library("library");
    std::shared_ptr<Float64Products> products;
    try {
      products = device->float64_products();
    } catch (const UsageError& error) {
      CHECK_THAT(error.what(), Contains(name) && Contains("no library"));
      continue;
    }
    CHECK_FALSE(is_emulated(name));
    CHECK_FALSE(products->exact());
    for (const DType dtype : {DType::f64, DType::bf16}) {
      for (const bool transposed : {false, true}) {
        const Operands operands(300, 500, 700, dtype, transposed);
        const Results expected = of_cpu(operands.gemm);
        Float64Gemm gemm = operands.gemm;
        std::vector<double> out(expected.out.size());
        gemm.out = out.data();
        products->compute(gemm);
        CHECK(check_product(gemm, *products));
        double worst = 0;
        for (size_t i = 0; i < out.size(); ++i) {
          worst = std::max(worst, std::fabs(out[i] - expected.out[i]) / expected.magnitudes[i]);
        }
        CHECK(worst <= kProductAgreement);
      }
    }
  }
}

TEST_CASE("PLUMB_ORACLE is heard: a word that is none is an error, the CPU needs no GPU") {
  for (const std::string& name : gpu_devices()) {
    const auto device = open_device(name);
    if (is_emulated(name)) CHECK_FALSE(device->float64_products());
    else CHECK(open_device(name)->float64_products());
    {
      const Asked cpu("cpu");
      CHECK_FALSE(open_device(name)->float64_products());
    }
    const Asked nonsense("gpus");
    CHECK_THROWS_WITH(open_device(name)->float64_products(),
                      Contains("PLUMB_ORACLE=gpus") && Contains("expected cpu, gpu or library"));
  }
}

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Of `threads` that each compute and check the product, as the oracles of a run do.
double seconds_of_all(int threads, Float64Products& products, const Float64Gemm& gemm) {
  std::vector<std::vector<double>> outs(static_cast<size_t>(threads),
                                        std::vector<double>(static_cast<size_t>(gemm.m * gemm.n)));
  return seconds_of([&] {
    std::vector<std::thread> all;
    for (std::vector<double>& out : outs) {
      all.emplace_back([&] {
        Float64Gemm own = gemm;
        own.out = out.data();
        products.compute(own);
        check_product(own, products);
      });
    }
    for (std::thread& thread : all) thread.join();
  });
}

TEST_CASE("how fast products are (not a test: gpu_test '[speed]')", "[.speed]") {
  for (const std::string& name : gpu_devices()) {
    if (is_emulated(name)) continue;
    const auto device = open_device(name);
    for (const DType dtype : {DType::bf16, DType::f64}) {
      for (const auto& [m, n, k] :
           {std::tuple{512, 9216, 2304}, {512, 2304, 9216}, {128, 2048, 2048}, {512, 512, 256}}) {
        const Operands operands(m, n, k, dtype, true);
        std::vector<double> out(static_cast<size_t>(m * n));
        Float64Gemm gemm = operands.gemm;
        gemm.out = out.data();
        const double all = 1e-9 * m * n * k;
        std::cout << m << " x " << k << " x " << n << ' ' << name_of(dtype)
                  << ", 1e9 products/s: cpu "
                  << all / seconds_of([&] { float64_gemm(gemm, nullptr); });
        for (const char* way : {"gpu", "library"}) {
          const Asked asked(way);
          const auto products = open_device(name)->float64_products();
          seconds_of_all(4, *products, gemm);  // memory, plans
          seconds_of_all(4, *products, gemm);
          std::cout << ", " << way << ' ' << all / seconds_of([&] { products->compute(gemm); })
                    << " (checked by 1 thread " << all / seconds_of_all(1, *products, gemm)
                    << ", by 8 " << 8 * all / seconds_of_all(8, *products, gemm) << ')';
        }
        std::cout << std::endl;
      }
    }
  }
}

}  // namespace
}  // namespace plumb
