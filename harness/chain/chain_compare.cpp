#include "harness/chain/chain_compare.h"

#include <algorithm>
#include <cmath>

#include "harness/judge/statistics.h"
#include "harness/judge/sums.h"
#include "harness/recording/layout.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// An output of the recording and its chained oracle, as [rows, columns].
struct Recorded {
  Layout layout;
  std::vector<double> r;
  double largest_delta = 0;
  ReferenceScales scales;  // of the chained oracle
};

std::vector<uint8_t> judged_elements(const Recording& recording, const OutputRef& ref,
                                     const Tensor& judged, const Layout& layout) {
  const Tensor mask = ref.valid ? recording.read(ref.valid->tensor) : Tensor();
  std::vector<uint8_t> out =
      to_mask(mask, ref.valid ? ref.valid->axes : std::vector<std::string>(), layout);
  if (!judged.defined()) return out;
  const std::vector<std::string> axes = {layout.axes.at(static_cast<size_t>(layout.batch_axis)),
                                         layout.axes.at(static_cast<size_t>(layout.token_axis))};
  const std::vector<uint8_t> counts = to_mask(judged, axes, layout);
  for (size_t i = 0; i < out.size(); ++i) out[i] = out[i] && counts[i];
  return out;
}

Recorded recorded(const Recording& recording, const Checkpoint& checkpoint,
                  const std::string& output, const Tensor& judged, DType storage) {
  const OutputRef& ref = checkpoint.outputs.at(output);
  const Tensor reference = recording.read(ref.tensor);
  Recorded out;
  out.layout = layout_of(reference.shape(), ref.axes);
  out.r = to_matrix(reference, out.layout);
  const std::vector<uint8_t> valid = judged_elements(recording, ref, judged, out.layout);
  std::vector<double> o = out.r;
  if (ref.chained->delta) {
    const Tensor stored = recording.read(*ref.chained->delta);
    const std::vector<double> delta = to_matrix(stored, out.layout);
    add_delta(o, stored, out.layout);
    for (size_t i = 0; i < o.size(); ++i) {
      if (valid[i]) out.largest_delta = std::max(out.largest_delta, std::fabs(delta[i]));
      if (!valid[i] || std::isfinite(o[i]) || !std::isfinite(out.r[i])) continue;
      throw BadInput(text(checkpoint.params.where(), ": outputs.", output,
                          ".chained_delta: the chained oracle is ", o[i],
                          " where the reference is ", out.r[i], ", at ",
                          element_name(out.layout, static_cast<int64_t>(i))));
    }
  }
  out.scales = reference_scales(out.layout, std::move(o), valid, storage);
  return out;
}

double largest_error(const std::vector<double>& y, const ReferenceScales& scales) {
  double largest = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const double d = std::fabs(y[i] - scales.o[i]);
    if (scales.usable[i] && exceeds(d, largest)) largest = d;
  }
  return quotient(largest, scales.max_abs);
}

// Of every row with elements that are judged; others: 0.
std::vector<double> row_errors(const std::vector<double>& y, const Recorded& it) {
  std::vector<double> out;
  const int64_t columns = it.layout.columns;
  for (int64_t row = 0; row < it.layout.rows; ++row) {
    double off = 0, size = 0;
    for (int64_t i = row * columns; i < (row + 1) * columns; ++i) {
      const auto at = static_cast<size_t>(i);
      if (!it.scales.usable[at]) continue;
      off += (y[at] - it.scales.o[at]) * (y[at] - it.scales.o[at]);
      size += it.scales.o[at] * it.scales.o[at];
    }
    out.push_back(std::sqrt(quotient(off, size)));
  }
  return out;
}

// "4-10, 12"
std::string ranges(const std::vector<bool>& set) {
  std::string out;
  for (size_t i = 0; i < set.size(); ++i) {
    if (!set[i] || (i > 0 && set[i - 1])) continue;
    size_t last = i;
    while (last + 1 < set.size() && set[last + 1]) ++last;
    out += text(out.empty() ? "" : ", ", i, last > i ? text('-', last) : "");
  }
  return out;
}

std::vector<double> row_of(const std::vector<double>& matrix, int64_t row, int64_t columns) {
  const auto begin = matrix.begin() + row * columns;
  return {begin, begin + columns};
}

}  // namespace

void compare_chained(ChainRow& row, const Recording& recording, const Checkpoint& checkpoint,
                     const Tensor& y, const Tensor& judged, DType dtype) {
  const Recorded it = recorded(recording, checkpoint, row.output, judged, dtype);
  const std::vector<uint8_t> none(it.r.size(), 0);
  row.reference = tensor_error(it.r, it.scales, not_finite(it.r));
  if (!y.defined() || !(y.shape() == it.layout.shape)) {
    row.chained = kNoFigure;  // which is above any limit
    return;
  }
  const std::vector<double> values = to_matrix(y, it.layout);
  if (dtype == DType::f64) {
    row.chained = largest_error(values, it.scales);
    row.chained_limit = kLimits.chain_float64 +
                        kLimits.float64_delta * quotient(it.largest_delta, it.scales.max_abs);
    return;
  }
  row.chained = tensor_error(values, it.scales, none);
  row.chained_limit = chained_limit(dtype, it.scales.n, row.introduces * row.reference, row.floor);
  row.saturated = is_saturated(dtype, row.reference);
  row.width = it.layout.columns;
  row.vectors = it.scales.n / std::max<int64_t>(row.width, 1);
}

double size_ratio(const Recording& recording, const Checkpoint& checkpoint,
                  const std::string& output) {
  const ReferenceScales scales =
      recorded(recording, checkpoint, output, Tensor(), recording.dtype()).scales;
  return scales.sum_o2 > 0 ? std::sqrt(scales.size_o2 / scales.sum_o2) : 1;
}

double Between::error(const Tensor& y, const Tensor& o) const {
  const OutputRef& ref = checkpoint.outputs.at(output);
  const Shape shape = recording.tensor_info(ref.tensor).shape;
  if (!y.defined() || !o.defined() || !(y.shape() == shape) || !(o.shape() == shape)) {
    return kNoFigure;
  }
  const Layout layout = layout_of(shape, ref.axes);
  const std::vector<double> a = to_matrix(y, layout), b = to_matrix(o, layout);
  const std::vector<uint8_t> counts = judged_elements(recording, ref, judged, layout);
  const auto sum = [&](const auto& term) {
    return chunked_sum(a.size(), [&](size_t i) { return counts[i] ? term(i) : 0.0; });
  };
  const double off = sum([&](size_t i) { return (a[i] - b[i]) * (a[i] - b[i]); });
  return std::sqrt(quotient(off, sum([&](size_t i) { return b[i] * b[i]; })));
}

void Between::add_tokens(std::vector<TokenLogits>& to, const Tensor& y, const Tensor& o) const {
  const OutputRef& ref = checkpoint.outputs.at(output);
  const Layout layout = layout_of(recording.tensor_info(ref.tensor).shape, ref.axes);
  if (!y.defined() || !o.defined() || !(y.shape() == layout.shape)) return;
  const std::vector<double> a = to_matrix(y, layout), b = to_matrix(o, layout);
  const std::vector<uint8_t> counts = judged_elements(recording, ref, judged, layout);
  for (int64_t row = 0; row < layout.rows; ++row) {
    if (!counts[static_cast<size_t>(row * layout.columns)]) continue;
    const std::vector<double> exact = row_of(b, row, layout.columns);
    to.push_back({row_of(a, row, layout.columns), exact, exact});
  }
}

std::string wrong_tokens(const Recording& recording, const Checkpoint& checkpoint,
                         const ChainRow& row, const Tensor& y, const Tensor& judged) {
  const Recorded it = recorded(recording, checkpoint, row.output, judged, recording.dtype());
  if (row.is_state() || !(y.shape() == it.layout.shape)) return "";
  const std::vector<double> of_y = row_errors(to_matrix(y, it.layout), it);
  const std::vector<double> of_r = row_errors(it.r, it);
  const double allowed =
      c_chain_of(recording.dtype()) * kappa(it.layout.columns, it.layout.rows) *
      std::max(row.introduces * *std::max_element(of_r.begin(), of_r.end()), row.floor);
  const int64_t tokens = it.layout.tokens;
  std::vector<bool> wrong(static_cast<size_t>(tokens));
  for (size_t i = 0; i < of_y.size(); ++i) {
    const size_t token = i % static_cast<size_t>(tokens);
    wrong[token] = wrong[token] || !(of_y[i] <= allowed);
  }
  const std::string which = ranges(wrong);
  return which.empty() ? "" : text("tokens that are off: ", which, " of 0-", tokens - 1);
}

Tensor last_tokens(const Tensor& t, int64_t count) {
  if (!t.defined() || t.dim(1) <= count) return t;
  Shape shape = t.shape();
  shape.set(1, count);
  const Tensor out = host_tensor(t.dtype(), shape);
  const int64_t all = t.bytes() / t.dim(0), kept = out.bytes() / t.dim(0);
  for (int64_t b = 0; b < t.dim(0); ++b) {
    std::copy_n(t.data<char>() + (b + 1) * all - kept, kept, out.data<char>() + b * kept);
  }
  return out;
}

int64_t changed_bytes(const Tensor& before, const Tensor& after, int axis, int64_t fresh,
                      std::optional<int64_t> seen) {
  const int64_t extent = before.dim(axis), now_extent = after.dim(axis);
  const int64_t had = std::min(seen.value_or(extent), extent);
  const int64_t has = seen ? std::min(*seen + fresh, now_extent) : now_extent;
  const int64_t kept = has - fresh;
  int64_t outer = 1, slot = size_of(after.dtype()), changed = 0;
  for (int i = 0; i < axis; ++i) outer *= after.dim(i);
  for (int i = axis + 1; i < after.rank(); ++i) slot *= after.dim(i);
  const auto compare = [&](int64_t from, int64_t to, int64_t count) {
    for (int64_t i = 0; i < outer; ++i) {
      const char* old = before.data<char>() + (i * extent + from) * slot;
      const char* now = after.data<char>() + (i * now_extent + to) * slot;
      for (int64_t at = 0; at < count * slot; ++at) changed += old[at] != now[at];
    }
  };
  if (kept > 0 && kept <= had) compare(had - kept, 0, kept);
  if (seen && extent == now_extent) compare(has, has, extent - has);
  return changed;
}

void add_tokens(std::vector<TokenLogits>& to, const Recording& recording,
                const Checkpoint& checkpoint, const Tensor& y, const Tensor& judged,
                const std::vector<std::vector<int64_t>>& next_ids) {
  const Recorded it = recorded(recording, checkpoint, "out", judged, recording.dtype());
  if (!y.defined() || !(y.shape() == it.layout.shape)) return;
  const std::vector<double> values = to_matrix(y, it.layout);
  const int64_t columns = it.layout.columns, tokens = it.layout.tokens;
  for (int64_t row = 0; row < it.layout.rows; ++row) {
    if (!it.scales.usable[static_cast<size_t>(row * columns)]) continue;
    TokenLogits token{row_of(values, row, columns), row_of(it.r, row, columns),
                      row_of(it.scales.o, row, columns)};
    const auto& ids = next_ids[static_cast<size_t>(row / tokens)];
    const auto at = static_cast<size_t>(row % tokens);
    if (at < ids.size() && ids[at] < columns) token.next = ids[at];
    to.push_back(std::move(token));
  }
}

}  // namespace plumb::harness
