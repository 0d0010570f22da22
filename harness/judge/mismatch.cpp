#include "harness/judge/mismatch.h"

#include <cmath>

#include "harness/judge/number_text.h"
#include "harness/recording/layout.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

struct FurthestOff {
  double value = 0;
  size_t at = 0;
  bool found = false;

  void offer(double other, size_t position) {
    if (found && !(other > value)) return;
    *this = {other, position, true};
  }
};

// "(0, 3)": the index of a row-major position in the whole output.
std::string index_text(const Layout& layout, int64_t flat) {
  std::string out;
  for (int axis = layout.shape.rank() - 1; axis >= 0; --axis) {
    const int64_t at = flat % layout.shape[axis];
    const int64_t index = axis == layout.token_axis ? layout.token_at(at) : at;
    out = std::to_string(index) + (out.empty() ? "" : ", ") + out;
    flat /= layout.shape[axis];
  }
  return '(' + out + ')';
}

double element_limit(const std::vector<Gate>& gates) {
  for (const Gate& gate : gates) {
    if (gate.name == "element") return gate.limit;
  }
  return 0;
}

}  // namespace

std::string mismatch_text(const std::vector<double>& y, const ReferenceScales& scales,
                          const std::vector<uint8_t>& valid, const std::vector<Gate>& gates) {
  const double limit = element_limit(gates);
  int64_t differ = 0, n = 0;
  FurthestOff absolute, relative;
  for (size_t i = 0; i < y.size(); ++i) {
    const double o = scales.o[i];
    if (!valid[i]) continue;
    ++n;
    if (y[i] == o || (std::isnan(y[i]) && std::isnan(o))) continue;
    const double off = std::fabs(y[i] - o);
    const auto row = static_cast<int64_t>(i) / scales.layout.columns;
    const double scale = scales.usable[i] ? scales.element_scale(row, static_cast<int64_t>(i)) : 0;
    const bool beyond = !(off <= limit * scale);
    differ += beyond;
    if (!std::isfinite(off)) continue;
    absolute.offer(off, i);
    if (o != 0) relative.offer(off / std::fabs(o), i);
  }
  const std::vector<int64_t> flat = flat_positions(scales.layout);
  const auto found = [&](const FurthestOff& it) {
    return it.found ? std::optional(LargestDifference{it.value, flat[it.at]}) : std::nullopt;
  };
  return words_of({differ, n, limit > 0, found(absolute), found(relative)}, scales.layout);
}

std::string words_of(const Mismatch& found, const Layout& layout) {
  if (found.n == 0 || found.differ == 0) return {};
  const double share = 100.0 * static_cast<double>(found.differ) / static_cast<double>(found.n);
  std::string out =
      text(found.differ, " of ", found.n, " elements ",
           found.limited ? "beyond the limit" : "differ", " (", two_digits(share), " %)");
  if (!found.absolute) return out + "; no difference is a number";
  const auto at = [&](const LargestDifference& it) { return " at " + index_text(layout, it.at); };
  out += text("; largest difference ", two_digits(found.absolute->value), at(*found.absolute));
  if (!found.relative) return out;
  return text(out, ", relative ", two_digits(found.relative->value), at(*found.relative));
}

}  // namespace plumb::harness
