// Tensors made by rule: the same bits as python_inspector/format/generator.py makes.
#include "harness/io/generator.h"

#include "harness/io/sha256.h"
#include "tests/harness/error_text.h"
#include "tests/harness/judge_support.h"

namespace plumb::harness::testing {

TEST_CASE("splitmix64 is the published generator") {
  // The first outputs for seed 1234567, as in the reference implementation's tests.
  CHECK(splitmix64(1234567, 0) == 6457827717110365317u);
  CHECK(splitmix64(1234567, 1) == 3203168211198807973u);
  CHECK(splitmix64(1234567, 4) == 16408922859458223821u);
}

TEST_CASE("generated tensors have the bits that Python makes") {
  struct Known {
    Generator generator;
    DType dtype;
    const char* sha256;
  };
  const Known all[] = {
      {{0, -15, 0}, DType::f32, "cdea5d8754352e937674b1671a1699ca01ae43782cc13cc9f73234413458c6a0"},
      {{0, -15, 0}, DType::f16, "c0450b70f89138300b7bbb7c4d15e0cca6a03f99cc6b9194b5c912c106c7607b"},
      {{0, -15, 0},
       DType::bf16,
       "52dd7255959377bb25ec6fb0903729a5afc61b04bdaef02869381e2dcf07788d"},
      {{1234567, -21, 0},
       DType::f32,
       "68e50c808cb47eef9cbe539cf75a85fee57c6d55f267ad6b122b53653fad72a1"},
      {{1234567, -21, 0},
       DType::f16,
       "f26a747111f4f1f301738c7c96287d7e61057abb1c09954e4e9f78e335821dec"},
      {{1234567, -21, 0},
       DType::bf16,
       "f454d127f7af1e7fd10c181f2578e8a02882606c3334d762fb015051205dcc78"},
      {{9007199254740993, -17, 1},
       DType::f32,
       "c35cb195c05db5cf37a69b62633b3de12cf9a40c5f9b137ebcad8751718e89ce"},
      {{9007199254740993, -17, 1},
       DType::f16,
       "9171ce337af6d26ff26bfe17ef1a7c8cc2351b72946baa7e91fcebba08f6b500"},
      {{9007199254740993, -17, 1},
       DType::bf16,
       "b4418c7add2e4b07270fbc1afec53235736614e3bc0ddf307ebf8ad9cb1e9275"},
      {{5, -40, 0}, DType::f32, "85da1eea3fa0b6fd52c9fd76735c0b8cf76e10c91e886448f0a8c2dbcc841bbf"},
      {{5, -40, 0}, DType::f16, "e4ddf48b2b9c36fbd7e6d38789407bed8add324ac4ebcebb7464fbdc941458dc"},
      {{5, -40, 0},
       DType::bf16,
       "9f29782073c5653ac44d7d29c3e8bb9a99c410b142cde4176cbbb6294474c589"},
  };
  for (const Known& known : all) {
    const Tensor made = generate(known.generator, known.dtype, {3, 1, 333});
    INFO(name_of(known.dtype) << " " << known.generator.exponent);
    CHECK(sha256_hex(made.raw(), made.bytes()) == known.sha256);
  }
}

TEST_CASE("generated values are near normal, of the size that is said") {
  const std::vector<double> values = values_of(generate({7, -15, 0}, DType::f32, {100'000}));
  double sum = 0, squares = 0, largest = 0;
  for (const double v : values) {
    sum += v;
    squares += v * v;
    largest = std::max(largest, std::fabs(v));
  }
  CHECK(std::fabs(sum / 1e5) < 0.02);
  CHECK(std::sqrt(squares / 1e5) == Approx(1.155).epsilon(0.01));
  CHECK(largest > 3);
  CHECK(largest <= 4);
}

TEST_CASE("what cannot be generated is refused") {
  CHECK(contains(error_text<UsageError>([] { generate({}, DType::f64, {2}); }), "dtype f64"));
}

}  // namespace plumb::harness::testing
