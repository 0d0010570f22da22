// Lookups, sums by ids, moves, the largest of rows, generated elements. Formulas and roundings:
// ops.h.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/ops/casts.h"
#include "kernels/oracle/oracle_ops.h"
#include "kernels/oracle/wider.h"

namespace plumb {
namespace {

Shape dense_strides(const Shape& shape) {
  Shape out = shape;
  int64_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    out.set(i, stride);
    stride *= shape[i];
  }
  return out;
}

// As cast() makes it of a float64.
double cast_value(DType dtype, double x) {
  double stored = 0;  // as wide as any element
  store_number(dtype, &stored, {false, 0, x});
  return load(dtype, &stored);
}

}  // namespace

void OracleOps::do_move(const MoveCall& call) {
  if (call.id_axis >= 0) require_ids(call.row.id, call.given, call.x.dim(call.id_axis));
  std::vector<int64_t> places;  // in x, of out's elements
  const Moved moved(call, dense_strides(call.x.shape()));
  const int64_t width = std::max<int64_t>(call.out.dim(-1), 1);
  for (int64_t row = 0; row < call.out.numel() / width; ++row) {
    moved.row(row, [&](int64_t, int64_t from) { places.push_back(from); });
  }
  const double outside = cast_value(call.out.dtype(), call.value);
  if (call.out.dtype() == DType::i64) return wider::move(call.out, places, call.x, outside);
  const std::vector<double> x = values_of(call.x);
  std::vector<double> values;
  for (const int64_t from : places) {
    values.push_back(from < 0 ? outside : x[static_cast<size_t>(from)]);
  }
  move(call.out, values);
}

void OracleOps::do_index_add(const IndexAddCall& call) {
  require_ids(call.op(), call.given, call.x.dim(call.axis));
  if (wider::has(call.x.dtype())) return wider::index_add(call);
  std::vector<double> values = values_of(call.x), magnitudes(values.size());
  std::vector<size_t> terms(values.size(), 1);
  for (size_t i = 0; i < values.size(); ++i) magnitudes[i] = std::fabs(values[i]);
  const std::vector<double> ids = values_of(call.ids), source = values_of(call.source);
  const Shape strides = dense_strides(call.x.shape());
  for (size_t i = 0; i < source.size(); ++i) {
    auto rest = static_cast<int64_t>(i), to = int64_t{0};
    for (int axis = call.source.rank() - 1; axis >= 0; --axis) {
      const int64_t c = rest % call.source.dim(axis);
      rest /= call.source.dim(axis);
      to += (axis == call.axis ? static_cast<int64_t>(ids[i]) : c) * strides[axis];
    }
    const auto at = static_cast<size_t>(to);
    values[at] += source[i];
    magnitudes[at] += std::fabs(source[i]);
    ++terms[at];
  }
  const Noise noise(call.x.dtype());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = noise.sum(values[i], magnitudes[i], terms[i]);
  }
  put(call.out, values, call.row.name);
}

void OracleOps::do_top_k(const Tensor& values, const Tensor& ids, const Tensor& x, bool largest) {
  if (is_whole(x.dtype())) return wider::top_k(values, ids, x, largest);
  const std::vector<double> from = values_of(x);
  const size_t width = extent(x, -1), k = extent(values, -1);
  std::vector<double> chosen, places;
  std::vector<size_t> order(width);
  // NaN is above all.
  const auto less = [](double a, double b) { return a < b || (std::isnan(b) && !std::isnan(a)); };
  for (size_t row = 0; k > 0 && row < from.size(); row += width) {
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](size_t a, size_t b) {
      return largest ? less(from[row + b], from[row + a]) : less(from[row + a], from[row + b]);
    });
    for (size_t i = 0; i < k; ++i) {
      chosen.push_back(from[row + order[i]]);
      places.push_back(static_cast<double>(order[i]));
    }
  }
  move(values, chosen);
  move(ids, places);
}

void OracleOps::do_generate(const GenerateCall& call) {
  const Generated generated(call);
  std::vector<double> values(static_cast<size_t>(call.out.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    const double exact =
        generated.at(static_cast<int64_t>(i), [](double x) { return std::sqrt(x); });
    values[i] = cast_value(call.out.dtype(), exact);
  }
  move(call.out, values);
}

}  // namespace plumb
