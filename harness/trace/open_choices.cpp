#include "harness/trace/open_choices.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "harness/judge/conformance.h"
#include "harness/judge/reference_scales.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// Where less is judged, a fault of one row is more likely missed than seen.
constexpr double kLeastJudged = 0.5;
constexpr size_t kMostNamed = 4;

int64_t integer_at(const Tensor& t, int64_t i) {
  switch (t.dtype()) {
    case DType::i64: return t.data<int64_t>()[i];
    case DType::i32: return t.data<int32_t>()[i];
    default: return t.data<uint8_t>()[i];
  }
}

// The values that are right at each open position; none where that is not known.
struct Legal {
  explicit Legal(const Recording& recording, const OutputRef& ref, int64_t elements) {
    if (!ref.legal) return;
    at = recording.read(ref.legal->at);
    values = recording.read(ref.legal->values);
    for (int64_t i = 0; i < at.numel(); ++i) {
      const int64_t position = at.data<int64_t>()[i];
      const bool ascends = i == 0 || at.data<int64_t>()[i - 1] <= position;
      if (position < 0 || position >= elements || !ascends) {
        throw BadInput(text("legal: position ", position, " at place ", i, " of tensor ",
                            ref.legal->at, ", expected ascending ones below ", elements,
                            "; record it again"));
      }
    }
  }

  // The first of the values of a position, and how many there are.
  std::pair<const int64_t*, int64_t> of(int64_t position) const {
    if (!at.defined()) return {nullptr, 0};
    const int64_t *first = at.data<int64_t>(), *last = first + at.numel();
    const auto [from, to] = std::equal_range(first, last, position);
    return {values.data<int64_t>() + (from - first), to - from};
  }

  bool has(int64_t position, int64_t value) const {
    const auto [first, count] = of(position);
    return std::find(first, first + count, value) != first + count;
  }

  Tensor at, values;
};

// Whether another element of y's line along `axis` has the same value.
bool is_repeated(const Tensor& y, int64_t axis, int64_t position) {
  if (axis < 0) return false;
  int64_t step = 1;
  for (int64_t i = axis + 1; i < y.rank(); ++i) step *= y.dim(i);
  const int64_t length = y.dim(axis), own = position / step % length;
  for (int64_t i = 0; i < length; ++i) {
    const int64_t other = position + (i - own) * step;
    if (i != own && integer_at(y, other) == integer_at(y, position)) return true;
  }
  return false;
}

Tensor copy_of(const Tensor& t) {
  Tensor out = host_tensor(t.dtype(), t.shape());
  std::memcpy(out.data<char>(), t.data<char>(),
              static_cast<size_t>(t.numel() * size_of(t.dtype())));
  return out;
}

// False where open elements have no known right value.
Tensor decidable(const Tensor& open, const Legal& legal, const Evidence& output) {
  const Layout layout = layout_of(open.shape(), output.axes);
  const std::vector<uint8_t> valid = to_mask(output.valid, output.valid_axes, layout);
  const std::vector<int64_t> flat = flat_positions(layout);
  const Tensor out = host_tensor(DType::boolean, open.shape());
  for (size_t i = 0; i < flat.size(); ++i) {
    const bool known = !open.data<uint8_t>()[flat[i]] || legal.of(flat[i]).second > 0;
    out.data<uint8_t>()[flat[i]] = valid[i] && known;
  }
  return out;
}

std::string listed(const std::vector<std::string>& places) {
  std::string out;
  for (size_t i = 0; i < std::min(places.size(), kMostNamed); ++i)
    out += (i ? "; " : " ") + places[i];
  return out + (places.size() > kMostNamed ? "; ..." : "");
}

}  // namespace

void take_choices(Evidence& output, const Recording& recording, const OutputRef& ref) {
  if (!ref.undecidable) return;
  const Tensor open = recording.read(*ref.undecidable);
  const Legal legal(recording, ref, open.numel());
  output.valid = decidable(open, legal, output);
  output.valid_axes = output.axes;
  if (!ref.legal || output.y.dtype() != output.reference.dtype() ||
      !(output.y.shape() == output.reference.shape())) {
    return;
  }
  const Tensor given = output.y;
  output.y = copy_of(given);
  const int64_t size = size_of(given.dtype());
  for (int64_t i = 0; i < given.numel(); ++i) {
    if (!open.data<uint8_t>()[i] || !legal.has(i, integer_at(given, i)) ||
        is_repeated(given, ref.legal->distinct, i)) {
      continue;
    }
    std::memcpy(output.y.data<char>() + i * size, output.reference.data<char>() + i * size,
                static_cast<size_t>(size));
  }
}

void note_choices(const Recording& recording, const OutputRef& ref, const Evidence& output,
                  CheckpointResult& result) {
  if (!ref.undecidable) return;
  const Tensor open = recording.read(*ref.undecidable);
  const Legal legal(recording, ref, open.numel());
  Layout layout = layout_of(open.shape(), output.axes);
  layout.labels = output.labels;
  const std::vector<int64_t> flat = flat_positions(layout);
  std::vector<std::string> places;
  std::set<size_t> rows;
  size_t unknown = 0;
  for (size_t i = 0; i < flat.size(); ++i) {
    if (!open.data<uint8_t>()[flat[i]]) continue;
    const int64_t right = legal.of(flat[i]).second;
    unknown += right == 0;
    places.push_back(element_name(layout, static_cast<int64_t>(i)));
    if (right > 0) places.back() += text(" (", right, " values)");
    rows.insert(i / static_cast<size_t>(layout.columns));
  }
  if (places.empty()) return;
  std::string words = text("output \"", output.name, "\": ", places.size(), " of ", flat.size(),
                           " choices are open");
  const size_t all_rows = flat.size() / static_cast<size_t>(layout.columns);
  if (all_rows > 1) words += text(", in ", rows.size(), " of ", all_rows, " rows");
  words += ": values are within rounding of each other;";
  if (unknown > 0) words += text(" ", unknown, " of them are not judged;");
  result.details.push_back(words + listed(places));
}

void note_judged(const OutputRef& ref, const Evidence& output, OutputVerdict& verdict,
                 CheckpointResult& result) {
  if (!output.has_expected_shape()) return;
  const Layout layout = layout_of(output.y.shape(), output.axes);
  const std::vector<uint8_t> valid = to_mask(output.valid, output.valid_axes, layout);
  const int64_t decided = std::count(valid.begin(), valid.end(), 1);
  int64_t judged = decided;
  if (output.ill_conditioned.defined()) {
    const std::vector<uint8_t> ill = to_mask(output.ill_conditioned, output.axes, layout);
    for (size_t i = 0; i < ill.size(); ++i) judged -= valid[i] && ill[i];
  }
  const int64_t all = static_cast<int64_t>(valid.size()) - ref.left_out;
  const std::string words = text(judged, " of ", all, " elements judged");
  result.details.push_back(text("output \"", output.name, "\": ", words));
  const bool right =
      verdict.status == Status::pass || (verdict.status == Status::blind && decided == 0);
  if (!right || decided == all) return;  // rows set aside have words
  verdict.reason =
      words + ", the others depend on choices within rounding or on rows without a key";
  if (static_cast<double>(judged) >= kLeastJudged * static_cast<double>(all)) return;
  verdict.status = Status::blind;
  verdict.unjudged = true;
  verdict.reason +=
      "; less than half proves nothing: give operands without ties, keys to every row";
}

}  // namespace plumb::harness
