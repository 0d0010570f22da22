#include "tests/faults/edits.h"

#include <algorithm>
#include <cmath>

namespace plumb::harness::testing {
namespace {

void last_column_zero(Values& v, const Tensor& t) {
  const auto width = static_cast<size_t>(t.dim(-1));
  for (size_t i = width - 1; i < v.size(); i += width) v[i] = 0;
}

void last_row_stale(Values& v, const Tensor& t) {
  const auto width = static_cast<size_t>(t.dim(-1));
  for (size_t i = v.size() - width; i < v.size() && i >= width; ++i) v[i] = v[i - width];
}

void second_batch_row_from_first(Values& v, const Tensor&) {
  for (size_t i = v.size() / 2; i < v.size(); ++i) v[i] = v[i - v.size() / 2];
}

void in_bf16(Values& v, const Tensor&) {
  for (double& x : v) x = round_to(DType::bf16, x);
}

void one_percent(Values& v, const Tensor&) {
  for (double& x : v) x *= 1.01;
}

void rows_reversed(Values& v, const Tensor& t) {
  const auto width = static_cast<std::ptrdiff_t>(t.dim(-1));
  for (auto row = v.begin(); row != v.end(); row += width) std::reverse(row, row + width);
}

void negated(Values& v, const Tensor&) {
  for (double& x : v) x = -x;
}

void all_zero(Values& v, const Tensor&) { std::fill(v.begin(), v.end(), 0); }

}  // namespace

void shifted(Values& v, const Tensor&) { std::rotate(v.begin(), v.begin() + 1, v.end()); }

void next_number(Values& v, const Tensor& t) {
  v.back() += std::fmax(std::fabs(v.back()), 1e-3) * 2 * unit_roundoff(t.dtype());
}

std::vector<NamedEdit> edits() {
  return {{"last column missing", last_column_zero},
          {"last row stale", last_row_stale},
          {"second batch row from the first", second_batch_row_from_first},
          {"in bf16", in_bf16},
          {"1 % too large", one_percent},
          {"shifted by one element", shifted}};
}

std::vector<NamedEdit> edits_of_moved() {
  std::vector<NamedEdit> out = edits();
  out.insert(out.end(), {{"rows reversed", rows_reversed},
                         {"last element off by one unit", next_number},
                         {"negated", negated},
                         {"lost", all_zero}});
  return out;
}

}  // namespace plumb::harness::testing
