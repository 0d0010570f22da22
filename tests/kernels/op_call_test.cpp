// A call of an op as data: its tensors, and the same call of others.
#include "kernels/ops/op_call.h"

#include "kernels/core/device.h"
#include "kernels/ops/ops.h"
#include "tests/catch.h"

namespace plumb {
namespace {

Tensor of(const Shape& shape) { return host_tensor(DType::f32, shape); }

TEST_CASE("a call lists the tensors in masks and scans, outputs first") {
  AttentionMask mask;
  mask.key_valid = host_tensor(DType::boolean, {1, 4});
  const OpCall sdpa =
      op_call<&Ops::sdpa>(OpId::sdpa, of({1, 1, 1, 8}), of({1, 1, 1, 8}), of({1, 1, 4, 8}),
                          of({1, 1, 4, 8}), mask, SdpaParams{0.5, {}});
  REQUIRE(sdpa.tensors().size() == 6);
  CHECK(sdpa.tensors()[4].dtype() == DType::boolean);
  CHECK(!sdpa.tensors()[5].defined());
  CHECK(sdpa.outputs().size() == 1);
  CHECK(sdpa.inputs().size() == 5);
  CHECK(sdpa.get<SdpaParams>().scale == 0.5);
}

TEST_CASE("a call with other tensors leaves the call itself alone") {
  const OpCall add = op_call<&Ops::add>(OpId::add, of({2}), of({2}), of({2}));
  const OpCall other = add.with({of({3})}, {of({3}), of({3})});
  for (const Tensor& t : other.tensors()) CHECK(t.shape() == Shape{3});
  for (const Tensor& t : add.tensors()) CHECK(t.shape() == Shape{2});
}

TEST_CASE("a missing last output stays absent in a call with other tensors") {
  const OpCall norm = op_call<&Ops::add_rms_norm>(OpId::add_rms_norm, of({2}), of({2}), of({2}),
                                                  of({2}), of({2}), RmsNormParams());
  const OpCall other = norm.with({of({4})}, {of({4}), of({4}), of({4})});
  CHECK(other.tensors()[0].shape() == Shape{4});
  CHECK(!other.tensors()[1].defined());
}

TEST_CASE("a pair of copies is two copies, in order") {
  const OpCall pair = op_call<&Ops::copy_pair>(OpId::copy, of({1}), of({2}), of({3}), of({4}));
  CHECK(pair.outputs()[1].shape() == Shape{3});
  const std::vector<OpCall> copies = pair.singles();
  REQUIRE(copies.size() == 2);
  CHECK(copies[1].outputs()[0].shape() == Shape{3});
  CHECK(copies[1].inputs()[0].shape() == Shape{4});
  CHECK(op_call<&Ops::copy>(OpId::copy, of({1}), of({2})).singles().size() == 1);
}

TEST_CASE("a call runs on the ops that it is given") {
  const auto cpu = open_device("cpu");
  const Tensor x = cpu->allocate(DType::f32, {4}), out = cpu->allocate(DType::f32, {4});
  for (int i = 0; i < 4; ++i) x.data<float>()[i] = static_cast<float>(i);
  op_call<&Ops::add>(OpId::add, out, x, x).on(cpu->ops());
  CHECK(out.data<float>()[3] == 6);
}

}  // namespace
}  // namespace plumb
