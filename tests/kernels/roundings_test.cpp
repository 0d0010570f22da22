// The compiler keeps the roundings that the code asks for.
#include <cmath>
#include <cstdint>
#include <random>

#include "tests/catch.h"

namespace plumb {
namespace {

constexpr int kTerms = 4;

// As the emulated GPU has it: the product is exact, the sum rounded.
float multiply_add(float a, float b, float sum) {
  return static_cast<float>(static_cast<double>(a) * b + sum);
}

// Two sums side by side, which a compiler may want to do at once.
[[gnu::noinline]] void sum_products(const float* x, const float* a, const float* b, float* out) {
  float sums[2] = {};
  for (int i = 0; i < kTerms; ++i) {
    sums[0] = multiply_add(x[i], a[i], sums[0]);
    sums[1] = multiply_add(x[i], b[i], sums[1]);
  }
  out[0] = sums[0];
  out[1] = sums[1];
}

float sum_one_by_one(const float* x, const float* a) {
  volatile float sum = 0;
  for (int i = 0; i < kTerms; ++i) sum = std::fma(x[i], a[i], sum);
  return sum;
}

TEST_CASE("roundings: a sum in float is rounded at every step") {
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> any(-0.5f, 0.5f);
  int different = 0;
  for (int round = 0; round < 1000; ++round) {
    float x[kTerms], a[kTerms], b[kTerms], sums[2];
    for (int i = 0; i < kTerms; ++i)
      x[i] = any(generator), a[i] = any(generator), b[i] = any(generator);
    sum_products(x, a, b, sums);
    different += sums[0] != sum_one_by_one(x, a);
    different += sums[1] != sum_one_by_one(x, b);
  }
  CHECK(different == 0);
}

}  // namespace
}  // namespace plumb
