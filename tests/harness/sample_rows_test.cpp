#include "harness/ops/sample_rows.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "kernels/ops/ops.h"
#include "tests/catch.h"

namespace plumb::harness {
namespace {

Tensor counted(const Shape& shape) {
  const Tensor out = host_tensor(DType::f32, shape);
  for (int64_t i = 0; i < out.numel(); ++i) out.data<float>()[i] = static_cast<float>(i);
  return out;
}

OpSample linear() {
  return {"linear", op_call<&Ops::linear>(OpId::linear, counted({3, 2, 4}), counted({3, 2, 5}),
                                          counted({4, 5}), Tensor())};
}

TEST_CASE("rows are those of operands with leading axes, weights have none", "[rows]") {
  const OpSample sample = linear();
  const SampleRows rows(sample);
  CHECK(rows.count() == 3);
  CHECK(rows.has_rows(0));
  CHECK(rows.has_rows(1));
  CHECK_FALSE(rows.has_rows(2));
  CHECK_FALSE(rows.has_rows(3));
  const OpCall moved = rows.with(std::vector<int64_t>{2, 0}).call;
  CHECK(moved.tensors()[1].shape() == Shape{2, 2, 5});
  CHECK(moved.tensors()[1].data<float>()[0] == 20);
  CHECK(moved.tensors()[1].data<float>()[10] == 0);
  CHECK(moved.tensors()[2].shape() == Shape{4, 5});
}

TEST_CASE("a sum along the leading axis has no rows", "[rows]") {
  const auto sum = [](int64_t axis) {
    return OpSample{"sum",
                    op_call<&Ops::cumsum>(OpId::cumsum, counted({3, 4}), counted({3, 4}), axis)};
  };
  const OpSample along = sum(0), across = sum(1);
  CHECK(SampleRows(along).count() == 0);
  CHECK(SampleRows(across).count() == 3);
}

TEST_CASE("rows that are not judged are filled, in operands alone", "[rows]") {
  const OpSample sample = linear();
  const SampleRows rows(sample);
  for (const RowVariation& it : row_variations(3, 0)) {
    if (it.fill != RowFill::nan || std::string(it.relation) != "neighbours") continue;
    const Tensor x = rows.with(it).call.tensors()[1];
    for (int64_t row = 0; row < 3; ++row) {
      const bool kept = std::ranges::binary_search(it.judged, row);
      CHECK(std::isnan(x.data<float>()[row * 10]) == !kept);
    }
  }
}

TEST_CASE("every relation is tried as soon as there are two rows", "[rows]") {
  std::set<std::string> relations;
  for (const RowVariation& it : row_variations(2, 1000)) {
    relations.insert(it.relation);
    for (const int64_t source : it.judged_sources()) CHECK((source == 0 || source == 1));
  }
  CHECK(relations == std::set<std::string>{"batch", "chunks", "neighbours", "padding", "position"});
  CHECK(row_variations(0, 1000).empty());
  for (const RowVariation& it : row_variations(1, 1000)) {
    CHECK(it.relation == std::string("padding"));
  }
}

}  // namespace
}  // namespace plumb::harness
