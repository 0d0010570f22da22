// What a norm's eps, and numbers below the normal ones, come to in a checkpoint's dtype.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "blocks/catalog.h"
#include "harness/judge/conformance.h"
#include "harness/judge/limits.h"
#include "harness/referee/feature_finder.h"

namespace plumb::harness {
namespace {

double floor_of(int64_t terms) { return terms > 0 ? accumulation_floor({Stage{terms, {}}}) : 0; }

// Bits of a 16-bit output of n elements that may differ (harness/judge/conformance.h): each is a
// sum of `terms`, of rounded sums of `inner` terms where there are such, and `alike` flip together.
double allowed_flips(DType storage, int64_t n, int64_t terms, int64_t inner, int64_t alike) {
  const double u = unit_roundoff(storage), growth = kLimits.conformance_growth;
  const double q = kLimits.conformance_base + growth * floor_of(terms) / u +
                   kLimits.conformance_cascade * std::sqrt(growth * floor_of(inner) / u);
  const double expected = static_cast<double>(n) * q;
  return std::max(kLimits.conformance_count,
                  expected + kLimits.conformance_sigmas * std::sqrt(expected)) +
         static_cast<double>(alike);
}

double mean_square(const double* x, int64_t width) {
  double squares = 0;
  for (int64_t c = 0; c < width; ++c) squares += x[c] * x[c];
  return squares / static_cast<double>(width);
}

// Elements of the row that begins at `first` that are stored with other bits when eps is ten times
// as large.
int64_t eps_flips(const NormRows& rows, int64_t first, DType storage, double eps) {
  const double* x = rows.x.data() + first;
  const double square = mean_square(x, rows.width);
  const double right = 1 / std::sqrt(square + eps), wrong = 1 / std::sqrt(square + 10 * eps);
  int64_t out = 0;
  for (int64_t c = 0; c < rows.width; ++c) {
    const double w = rows.weight[static_cast<size_t>(first + c) % rows.weight.size()];
    const auto stored = [&](double scale) {
      const double normed = rows.rounds_before ? round_to(storage, x[c] * scale) : x[c] * scale;
      return round_to(storage, normed * w);
    };
    out += stored(right) != stored(wrong);
  }
  return out;
}

}  // namespace

void FeatureFinder::eps(const NormRows& rows) {
  const double eps = number("eps");
  const DType storage = dtype_;
  const auto n = static_cast<int64_t>(rows.x.size());
  double smallest = INFINITY;
  int64_t flips = 0;
  const bool by_bits = size_of(storage) == 2 && conformance_applies(storage, n);
  for (int64_t i = 0; i + rows.width <= n && rows.width > 0; i += rows.width) {
    smallest = std::min(smallest, mean_square(rows.x.data() + i, rows.width));
    if (by_bits) flips += eps_flips(rows, i, storage, eps);
  }
  const double allowed = allowed_flips(storage, n, rows.width, 0, rows.alike);
  seen("eps", by_bits ? static_cast<double>(flips) > allowed
                      : eps / (2 * smallest) > unit_roundoff(storage));
}

namespace {

// Whether zero is further from a number of that size than the gate `ulp` allows
// (harness/verdicts.md).
bool is_far(double size, std::vector<double> sizes, double least, int64_t terms) {
  if (sizes.empty()) return false;
  const auto middle = sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2);
  std::nth_element(sizes.begin(), middle, sizes.end());
  const double u = unit_roundoff(DType::f32);
  const double sums = std::sqrt(static_cast<double>(std::max<int64_t>(terms, 1)));
  const double noise = (kLimits.conformance_noise + sums) * u * *middle;
  return size - noise > 2 * kLimits.furthest_bit * 2 * unit_roundoff(DType::f16) * least;
}

}  // namespace

// Numbers below the normal ones are too small for any error gate: how many bits differ tells of
// kernels that flush them, and, where no rounded value is summed, how far one is off.
void FeatureFinder::denormals() {
  const blocks::BlockEntry* block = blocks::find_block(checkpoint_.block);
  if (!block || dtype_ != DType::f16) return;  // of f32 and bf16: too small for any recording
  int64_t terms = 0, all = 0;
  for (const auto& [name, ref] : checkpoint_.inputs) {
    const Shape& of = recording_.tensor_info(ref.tensor).shape;
    if (of.rank() > 0) terms = std::max(terms, of[-1]);
  }
  bool visible = false;
  for (const auto& [name, ref] : checkpoint_.outputs) {
    if (recording_.tensor_info(ref.tensor).dtype != DType::f16) continue;
    const Tensor y = recording_.read(ref.tensor);
    const double least = std::ldexp(1, info(DType::f16).min_exponent);
    int64_t count = 0;
    double largest = 0;
    std::vector<double> sizes;
    for (int64_t i = 0; i < y.numel(); ++i) {
      const double size = std::fabs(at(y, i));
      if (std::isfinite(size)) sizes.push_back(size);
      if (size == 0 || !(size < least)) continue;
      ++count;
      largest = std::max(largest, size);
    }
    all += count;
    const bool cascade = block->bits == blocks::BitRule::cascade;
    const bool by_bits =
        block->bits != blocks::BitRule::none && conformance_applies(DType::f16, y.numel());
    const int64_t alike = block->bits == blocks::BitRule::scaled ? alike_in_row(input("x")) : 0;
    const double allowed =
        block->bits == blocks::BitRule::exact
            ? 0
            : allowed_flips(DType::f16, y.numel(), terms, cascade ? terms : 0, alike);
    const bool judged = by_bits || block->bits == blocks::BitRule::exact;
    const bool far = judged && !cascade && is_far(largest, std::move(sizes), least, terms);
    visible = visible || far || (judged && static_cast<double>(count) > allowed);
  }
  if (all > 0) seen("denormals", visible);
}

}  // namespace plumb::harness
