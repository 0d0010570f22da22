// causal_mask against its definition, slot by slot.
#include "blocks/sdpa.h"
#include "kernels/core/error.h"
#include "tests/blocks/support.h"

using Catch::Contains;

namespace plumb::blocks::testing {
namespace {

constexpr int64_t kBatch = 2;

struct Case {
  bool causal;
  int64_t window;  // 0: none
  int64_t query_offset, key_offset, queries, keys;
  bool padded;
};

Params params(const Case& c, const std::string& form) {
  return params_of(
      {{"causal", c.causal},
       {"window", c.window ? Params::Value(static_cast<double>(c.window)) : Params::Null{}},
       {"query_offset", static_cast<double>(c.query_offset)},
       {"key_offset", static_cast<double>(c.key_offset)},
       {"fully_masked", std::string("zero")},
       {"form", form},
       {"queries", static_cast<double>(c.queries)},
       {"keys", static_cast<double>(c.keys)},
       {"batch", static_cast<double>(kBatch)}});
}

bool is_valid(int64_t b, int64_t s) { return b == 0 ? s >= 2 : s != 1; }

Values expected(const Case& c, double allowed, double forbidden) {
  Values out;
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t query = c.query_offset; query < c.query_offset + c.queries; ++query) {
      for (int64_t s = 0; s < c.keys; ++s) {
        const int64_t key = c.key_offset + s;
        const bool hidden = (c.causal && key > query) || (c.window && query - key >= c.window) ||
                            (c.padded && !is_valid(b, s));
        out.push_back(hidden ? forbidden : allowed);
      }
    }
  }
  return out;
}

}  // namespace

TEST_CASE("causal_mask: k <= q, q - k < window and the key is valid") {
  Bench bench(GENERATE("cpu", "oracle"));
  const bool padded = GENERATE(false, true);
  const int64_t window = GENERATE(0, 1, 3, 50);
  const Case c =
      GENERATE_COPY(Case{true, window, 0, 0, 5, 5, padded}, Case{false, window, 0, 0, 4, 6, padded},
                    Case{true, window, 7, 4, 3, 6, padded},   // after eviction
                    Case{true, window, 9, 0, 1, 10, padded},  // decode
                    Case{true, window, 4, 0, 3, 7, padded});  // chunk
  std::map<std::string, Tensor> inputs;
  if (padded) {
    Values valid;
    for (int64_t i = 0; i < kBatch * c.keys; ++i) valid.push_back(is_valid(i / c.keys, i % c.keys));
    inputs["key_valid"] = bench.from(DType::boolean, {kBatch, c.keys}, valid);
  }
  const Shape shape{kBatch, 1, c.queries, c.keys};
  const Tensor boolean = bench.device().allocate(DType::boolean, shape);
  run_block(bench, "causal_mask", params(c, "bool"), {inputs, {}, {{"mask", boolean}}});
  CHECK(values_of(boolean) == expected(c, 1, 0));
  // Lowest finite number, as transformers', whatever rows without keys give.
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor additive = bench.device().allocate(dtype, shape);
    run_block(bench, "causal_mask", params(c, "additive"), {inputs, {}, {{"mask", additive}}});
    CHECK(values_of(additive) == expected(c, 0, -info(dtype).max));
  }
}

TEST_CASE("causal_mask: an output that the numbers do not describe is refused") {
  Bench bench("cpu");
  const Case c{true, 0, 0, 0, 3, 3, false};
  const auto says = [&](const std::string& form, DType dtype, const Shape& shape) {
    const Tensor out = bench.device().allocate(dtype, shape);
    return message_of<BadInput>([&] {
      run_block(bench, "causal_mask", params(c, form), {{}, {}, {{"mask", out}}});
    });
  };
  CHECK_THAT(says("bool", DType::f32, {kBatch, 1, 3, 3}),
             Contains("a bool mask") && Contains("f32"));
  CHECK_THAT(says("additive", DType::f32, {kBatch, 1, 3, 4}),
             Contains("2 x 1 x 3 x 3") && Contains("[2, 1, 3, 4]"));
}

TEST_CASE("mask: what rows without keys give has three names") {
  Params p = params({true, 0, 0, 0, 1, 1, false}, "bool");
  p.set("fully_masked", std::string("uniform"));
  CHECK(read_mask(p).fully_masked == FullyMasked::uniform);
  p.set("fully_masked", std::string("excluded"));
  CHECK(read_mask(p).fully_masked == FullyMasked::excluded);
  p.set("fully_masked", std::string("nan"));
  CHECK_THAT(message_of<BadInput>([&] { read_mask(p); }),
             Contains("\"nan\", expected uniform, zero or excluded"));
}

}  // namespace plumb::blocks::testing
