// Bytes and flops of ops, by hand.
#include "harness/bench/cost.h"

#include "kernels/ops/ops.h"
#include "tests/catch.h"

namespace plumb::harness {
namespace {

Tensor of(const Shape& shape, DType dtype = DType::bf16) { return host_tensor(dtype, shape); }

TEST_CASE("a linear reads x, weight and bias, writes out, and has 2 M N K + M N flops") {
  const auto linear = [](const Tensor& bias) {
    return cost_of(op_call<&Ops::linear>(OpId::linear, of({3, 5}), of({3, 7}), of({5, 7}), bias));
  };
  const Cost cost = linear(of({5}));
  CHECK(cost.bytes == 2 * (15 + 21 + 35 + 5));
  CHECK(cost.flops == 2 * 3 * 5 * 7 + 3 * 5);
  CHECK(linear({}).flops == 210);
}

TEST_CASE("add_rms_norm writes two outputs") {
  const Tensor x = of({4, 8}, DType::f32);
  const Cost cost = cost_of(op_call<&Ops::add_rms_norm>(OpId::add_rms_norm, x, x, x, x,
                                                        of({8}, DType::f32), RmsNormParams()));
  CHECK(cost.bytes == 4 * (4 * 32 + 8));
  CHECK(cost.flops == 5 * 32);
}

TEST_CASE("an embedding reads only the rows it is asked for") {
  const Cost cost = cost_of(op_call<&Ops::embedding>(OpId::embedding, of({1, 4, 8}),
                                                     of({1, 4}, DType::i64), of({1000, 8}), 1.0));
  CHECK(cost.bytes == 2 * 2 * 32 + 4 * 8);
}

AttentionMask causal(int64_t query_offset) {
  AttentionMask mask;
  mask.causal = true;
  mask.query_offset = query_offset;
  return mask;
}

Cost cost_of_sdpa(const Tensor& out, const Tensor& q, const Tensor& kv, const AttentionMask& mask) {
  return cost_of(op_call<&Ops::sdpa>(OpId::sdpa, out, q, kv, kv, mask, SdpaParams()));
}

TEST_CASE("causal attention counts the pairs that the mask allows") {
  const Tensor q = of({1, 4, 6, 16}), kv = of({1, 2, 6, 16}), out = of({1, 6, 4, 16});
  const Cost cost = cost_of_sdpa(out, q, kv, causal(0));
  CHECK(cost.flops == 4 * 16 * (1 + 2 + 3 + 4 + 5 + 6) * 4);
  CHECK(cost.bytes == 2 * (2 * 4 * 6 * 16 + 2 * 2 * 6 * 16));
}

TEST_CASE("a decode step with a window reads the window only") {
  const Tensor q = of({1, 4, 1, 16}), kv = of({1, 2, 100, 16}), out = of({1, 1, 4, 16});
  AttentionMask mask = causal(99);
  mask.window = 10;
  const Cost cost = cost_of_sdpa(out, q, kv, mask);
  CHECK(cost.flops == 4 * 16 * 10 * 4);
  CHECK(cost.bytes == 2 * (2 * 4 * 16 + 2 * 2 * 10 * 16));
  CHECK(visible_keys(mask, 0, 100).begin == 90);
  CHECK(visible_keys(mask, 0, 100).end == 100);
}

}  // namespace
}  // namespace plumb::harness
