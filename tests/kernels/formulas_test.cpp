// Formulas as text. What they compute, `harness --suite ops` and test_op_formulas.py test.
#include "kernels/ops/formulas.h"

#include "kernels/ops/table.h"
#include "tests/catch.h"

namespace plumb {
namespace {

TEST_CASE("a formula as text has its inputs' names, its roundings and the parentheses it needs") {
  CHECK(text_of(OpId::add, Formula::add) == "R(a + b)");
  CHECK(text_of(OpId::softcap, Formula::softcap) == "R(R(tanh(R(x / number))) * number)");
  CHECK(text_of(OpId::gated_activation, Formula::gated_gelu) == "R(R(gelu(gate)) * up)");
  CHECK(text_of(OpId::softplus_backward, Formula::softplus_backward) ==
        "R((d (where(x < 0, 0, x) + log1p(exp(-abs(x)))) / d x) * d_out)");
  CHECK(text_of(OpId::gated_activation_backward, Formula::gate_backward_gelu) ==
        "R(((d gelu(gate) / d gate) * up) * d_out)");
  CHECK(text_of(OpId::relu_backward, Formula::relu_backward) == "R(where(x <= 0, 0, d_out))");
  CHECK(text_of(OpId::rsqrt, Formula::rsqrt) == "R(1 / sqrt(x))");
  CHECK(text_of(OpId::minimum, Formula::minimum) == "R(where(a < b, a, where(b <= a, b, a + b)))");
  CHECK(text_of(OpId::ceil, Formula::ceil) == "R(-floor(-x))");
  CHECK(text_of(OpId::softplus, Formula::softplus) ==
        "R(where(x < 0, 0, x) + log1p(exp(-abs(x))))");
  CHECK(text_of(OpId::sigmoid, Formula::sigmoid) ==
        "R(where(x < 0, exp(-abs(x)), 1) / (1 + exp(-abs(x))))");
  CHECK(text_of(OpId::ne, Formula::ne) == "R(where(a == b, 0, 1))");
  CHECK(text_of(OpId::where, Formula::where) == "R(where(condition == 0, b, a))");
  CHECK(text_of(OpId::multiply_add, Formula::multiply_add) == "R(fma(a, b, c))");
  CHECK(text_of(OpId::affine, Formula::affine) == "R(fma(x, number, shift))");
  CHECK(text_of(OpId::logical_and, Formula::logical_and) ==
        "R(where(a == 0, 0, where(b == 0, 0, 1)))");
  CHECK(text_of(OpId::pow, Formula::pow) == "R(pow(a, b))");
  CHECK(text_of(OpId::scaled_add, Formula::scaled_add) == "R(R(x * number) + residual)");
  CHECK(text_of(OpId::scale, Formula::divide) == "R(x / number)");
}

}  // namespace
}  // namespace plumb
