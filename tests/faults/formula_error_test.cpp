// The largest error of a formula is seen, wherever it is.
#include "harness/ops/formula_error.h"

#include <cmath>

#include "tests/catch.h"
#include "tests/faults/edits.h"
#include "tests/faults/faulty_device.h"

namespace plumb::harness::testing {
namespace {

// exp, off where `wrong` says so.
FormulaError error_of_exp(const std::function<void(double& y, double x)>& wrong) {
  const auto device = open_device("cpu", 1), oracle = open_device("oracle", 1);
  FaultyDevice faulty(*device, {.op = OpId::exp, .whole = [&](Call& c, const OpCall& call) {
                                  call.on(c.ops);
                                  const Values x = values_of(call.operand("x"));
                                  edit(call.operand("out"), [&](Values& y) {
                                    for (size_t i = 0; i < y.size(); ++i) wrong(y[i], x[i]);
                                  });
                                }});
  return formula_error(OpId::exp, faulty, *oracle).value();
}

TEST_CASE("the error of a formula is the largest that its results have") {
  const FormulaError right = error_of_exp([](double&, double) {});
  CHECK(right.within());
  CHECK(right.ulps > 0.49);
  const FormulaError slanted = error_of_exp([](double& y, double) { y *= 1 + 0x1p-21; });
  CHECK(!slanted.within());
  CHECK((slanted.ulps > 7 && slanted.ulps < 9));
  const FormulaError flushed = error_of_exp([](double& y, double) { y = y < 0x1p-126 ? 0 : y; });
  CHECK(!flushed.within());
  CHECK((flushed.at[0] < -87 && flushed.at[0] > -104));
  CHECK(std::isinf(error_of_exp([](double& y, double x) {
                     if (x > 89) y = std::nan("");
                   }).ulps));
}

TEST_CASE("an op that rounds on the way, gives bool, or is no formula, has no such error") {
  const auto device = open_device("cpu", 1);
  for (const OpId op : {OpId::softcap, OpId::linear, OpId::eq}) {
    CHECK(!formula_error(op, *device, *device));
  }
}

}  // namespace
}  // namespace plumb::harness::testing
