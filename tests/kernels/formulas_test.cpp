// Every op that one formula describes, on every device: the formula in float64, rounded once. And
// the formulas as text.
#include "kernels/ops/formulas.h"

#include <cmath>
#include <limits>

#include "kernels/ops/map_call.h"
#include "tests/kernels/support.h"

namespace plumb {
namespace {

std::vector<OpId> ops_with_one_formula() {
  std::vector<OpId> out;
  for (int i = 0; i < kOpCount; ++i) {
    const auto op = static_cast<OpId>(i);
    if (has_one_formula(op) && !is_fused(op)) out.push_back(op);
  }
  return out;
}

void call(Device& device, OpId op, const Tensor& out, const Tensor& a, const Tensor& b) {
  if (row_of(op).operands.count == 3) device.ops().binary(op, out, a, b);
  else device.ops().unary(op, out, a, 0.3125);
}

Values exactly(OpId op, const Values& a, const Values& b) {
  const auto oracle = open_device("oracle");
  const auto n = static_cast<int64_t>(a.size());
  const Guarded x = holding(*oracle, DType::f64, {n}, a), y = holding(*oracle, DType::f64, {n}, b);
  Guarded out(*oracle, DType::f64, {n});
  call(*oracle, op, out, x, y);
  return out.get();
}

TEST_CASE("every op with one formula: its value rounded once, any layout, in place") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const OpId op = GENERATE(from_range(ops_with_one_formula()));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const Layout layout = GENERATE(Layout::contiguous, Layout::padded, Layout::exchanged);
  INFO(name_of(op));
  const Shape shape{2, 3, 517};
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Values a = random_values(dtype, shape.numel(), 1), b = random_values(dtype, shape.numel(), 2);
  const Values special = {0, -0.0, 1, -1, kInfinity, -kInfinity, std::nan("")};
  size_t at = 0;
  for (const double x : special) {
    for (const double y : special) {
      a[at] = x;
      b[at++] = y;
    }
  }
  const Guarded x = holding(*device, dtype, shape, a, layout),
                y = holding(*device, dtype, shape, b);
  Guarded out(*device, dtype, shape, layout);
  const Values result = run(*device, {&out}, [&] { call(*device, op, out, x, y); })[0];

  const Values exact = exactly(op, a, b);
  Values model, bound;
  for (const double v : exact) {
    model.push_back(round_to(dtype, v));
    const double units = rounding_unit(dtype) + 2 * row_of(op).flops * kU32;
    bound.push_back(std::isfinite(v) ? std::fabs(v) * units + smallest_step(dtype) : 0);
  }
  require_close(result, exact, bound);
  require_conforms(dtype, result, model, {});
  out.set(a);
  call(*device, op, out, out, y);
  REQUIRE(out.bytes() == [&] {
    Guarded again(*device, dtype, shape);
    call(*device, op, again, x, y);
    return again.bytes();
  }());
}

TEST_CASE("a formula as text has its inputs' names, its roundings and the parentheses it needs") {
  CHECK(text_of(OpId::add, Formula::add) == "R(a + b)");
  CHECK(text_of(OpId::softcap, Formula::softcap) == "R(R(tanh(R(x / number))) * number)");
  CHECK(text_of(OpId::gated_activation, Formula::gated_gelu) == "R(R(gelu(gate)) * up)");
  CHECK(text_of(OpId::rsqrt, Formula::rsqrt) == "R(1 / sqrt(x))");
  CHECK(text_of(OpId::minimum, Formula::minimum) == "R(where(a < b, a, where(b <= a, b, a + b)))");
  CHECK(text_of(OpId::scaled_add, Formula::scaled_add) == "R(R(x * number) + residual)");
  CHECK(text_of(OpId::scale, Formula::divide) == "R(x / number)");
}

}  // namespace
}  // namespace plumb
