// cumsum against its sums, and what components refuse.
#include <cmath>

#include "kernels/core/error.h"
#include "tests/kernels/support.h"

namespace plumb {
namespace {

size_t index(int64_t i) { return static_cast<size_t>(i); }

TEST_CASE("cumsum: running sums along any axis, in place") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const Layout layout = GENERATE(Layout::contiguous, Layout::padded, Layout::exchanged);
  const Shape shape = GENERATE(Shape{2100}, Shape{3, 2, 1031}, Shape{2, 40, 3}, Shape{2, 0, 3});
  const int axis = GENERATE(0, 1, 2);
  if (axis >= shape.rank()) return;
  const Values values = random_values(dtype, shape.numel(), 8);
  Guarded x = holding(*device, dtype, shape, values, layout), out(*device, dtype, shape, layout);
  const Values y = run(*device, {&out}, [&] { device->ops().cumsum(out, x, axis); })[0];
  int64_t inner = 1;
  for (int i = axis + 1; i < shape.rank(); ++i) inner *= shape[i];
  Values exact(values), bound(values.size()), magnitudes(values.size());
  for (int64_t i = 0; i < shape.numel(); ++i) {
    const int64_t terms = i / inner % shape[axis];
    magnitudes[index(i)] = std::fabs(values[index(i)]);
    if (terms > 0) {
      exact[index(i)] += exact[index(i - inner)];
      magnitudes[index(i)] += magnitudes[index(i - inner)];
    }
    bound[index(i)] = std::fabs(exact[index(i)]) * rounding_unit(dtype) + smallest_step(dtype) +
                      static_cast<double>(terms) * kU32 * magnitudes[index(i)];
  }
  require_close(y, exact, bound);
  device->ops().cumsum(x, x, axis);
  REQUIRE(x.get() == y);
  REQUIRE_THROWS_WITH(device->ops().cumsum(out, x, shape.rank()),
                      text("[cumsum] axis is ", shape.rank(), ", x has shape ", shape));
}

TEST_CASE("components refuse operands that do not fit, with what they have and what fits") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  Ops& ops = device->ops();
  Guarded a(*device, DType::f32, {2, 3}), b(*device, DType::f32, {3, 2});
  Guarded half(*device, DType::f16, {2, 3}), line(*device, DType::f32, {3});
  Guarded mask(*device, DType::boolean, {2, 3}), narrow(*device, DType::boolean, {2, 2});
  Guarded ids(*device, DType::i64, {2, 3}), flat(*device, DType::i64, {3});
  const std::string shapes = "has shape [3, 2], expected [2, 3]";
  const auto refused = [](const std::string& words, const std::function<void()>& op) {
    REQUIRE_THROWS_AS(op(), UsageError);
    REQUIRE_THROWS_WITH(op(), words);
  };
  refused(
      "[div] b has shape [3, 2], which does not go with [2, 3]: axis -1 has extents 2 and 3, "
      "neither is 1",
      [&] { ops.div(a, a, b); });
  refused("[div] out " + shapes, [&] { ops.div(b, a, a); });
  refused("[div] b is f16, expected f32", [&] { ops.div(a, a, half); });
  refused("[add_scalar] out " + shapes, [&] { ops.add_scalar(b, a, 1); });
  refused("[add_scalar] x is i64, expected a float dtype", [&] { ops.add_scalar(ids, ids, 1); });
  refused("[transpose] x has shape [3], expected [*,M,N]", [&] { ops.transpose(line, line); });
  refused("[transpose] out has shape [2, 3], expected [3, 2]", [&] { ops.transpose(a, a); });
  refused("[mask_fill] mask has shape [2, 2], expected [2, 3]",
          [&] { ops.mask_fill(a, a, narrow, 0); });
  refused("[mask_fill] mask is f32, expected bool", [&] { ops.mask_fill(a, a, a, 0); });
  refused("[mask_fill] out " + shapes, [&] { ops.mask_fill(b, a, mask, 0); });
  refused("[position_ids] out has shape [3], expected [B,T]",
          [&] { ops.position_ids(flat, {}, 0); });
  refused("[position_ids] out is f32, expected i64", [&] { ops.position_ids(a, {}, 0); });
  refused("[position_ids] out has shape [2, 3], expected [2, 2]",
          [&] { ops.position_ids(ids, narrow, 0); });
}

}  // namespace
}  // namespace plumb
