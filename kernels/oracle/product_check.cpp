#include "kernels/oracle/product_check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/core/error.h"
#include "kernels/core/shared_loop.h"

namespace plumb {
namespace {

// Of a product: elements that are always recomputed, and rows that are at most.
constexpr int64_t kElements = 16, kMostRows = 4;
// That share a sum of a row: an error of one must not be lost among all.
constexpr int64_t kColumnsAtOnce = 8192;

// The same numbers for the same operands: a run can be repeated.
class Random {
 public:
  explicit Random(const Float64Gemm& g)
      : state_(static_cast<uint64_t>(g.m * 31 + g.n) * 31 + static_cast<uint64_t>(g.k)) {
    const int64_t elements = g.m * g.k;
    for (int64_t i = 0; i < elements; i += std::max<int64_t>(elements / 16, 1)) {
      state_ = bits() ^ std::bit_cast<uint64_t>(g.a[i]);
    }
  }

  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // Between 1 and 2, of either sign: no element weighs little, no two are alike.
  double factor() {
    const uint64_t z = bits();
    const double size = 1 + static_cast<double>(z >> 12) * 0x1p-52;
    return z & 1 ? -size : size;
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }

 private:
  uint64_t state_;
};

struct Sum {
  double value = 0, magnitude = 0;  // of the terms, and of their magnitudes
};

// The sum of a[i] b[i], and that of |a[i]| of[i], in lanes that a compiler takes for vectors.
Sum dot(const double* a, const double* b, const double* of, size_t n) {
  constexpr size_t kLanes = 8;
  double values[kLanes] = {}, magnitudes[kLanes] = {};
  for (size_t i = 0; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      values[lane] += a[i + lane] * b[i + lane];
      magnitudes[lane] += std::fabs(a[i + lane]) * std::fabs(of[i + lane]);
    }
  }
  Sum out;
  for (size_t i = n / kLanes * kLanes; i < n; ++i) {
    out.value += a[i] * b[i];
    out.magnitude += std::fabs(a[i]) * std::fabs(of[i]);
  }
  for (size_t lane = 0; lane < kLanes; ++lane) {
    out.value += values[lane];
    out.magnitude += magnitudes[lane];
  }
  return out;
}
Sum dot(const double* a, const double* b, size_t n) { return dot(a, b, b, n); }

struct Sums {
  explicit Sums(size_t n) : values(n), magnitudes(n) {}
  std::vector<double> values, magnitudes;
};

void add_product(Sums& to, const std::vector<double>& terms, double factor) {
  double *values = to.values.data(), *magnitudes = to.magnitudes.data();
  const double* from = terms.data();
  for (size_t k = 0; k < terms.size(); ++k) values[k] += from[k] * factor;
  for (size_t k = 0; k < terms.size(); ++k) magnitudes[k] += std::fabs(from[k] * factor);
}

// Elements of b as doubles: `count` of column j from row k on, or of row k from column j on.
void widen(const Float64Gemm& g, int64_t k, int64_t j, int64_t count, double* to) {
  const int64_t at = k * g.b_row + j * g.b_column;
  load_all(g.b_dtype, static_cast<const char*>(g.b) + at * size_of(g.b_dtype), count, to);
}

// The factor of a column, so that those of all sizes weigh alike in a sum.
double scaled(double factor, double magnitude) {
  if (!(magnitude > 0) || !std::isfinite(magnitude)) return factor;
  return std::ldexp(factor, -std::clamp(std::ilogb(magnitude), -1000, 1000));
}

// Scales the factors of the columns from `first` on, and sums b[k, n] factor[n] for every k.
Sums times_factors(const Float64Gemm& g, int64_t first, std::vector<double>& factors) {
  const auto depth = static_cast<size_t>(g.k), columns = factors.size();
  const auto count = static_cast<int64_t>(columns);
  const LoopParts parts(columns, 1, depth * columns);
  if (g.b_column == 1 && g.b_row != 1) {
    for_parts(parts, [&](size_t begin, size_t end, size_t) {
      std::vector<double> row(end - begin), magnitudes(end - begin);
      for (int64_t k = 0; k < g.k; ++k) {
        widen(g, k, first + static_cast<int64_t>(begin), static_cast<int64_t>(row.size()),
              row.data());
        for (size_t j = 0; j < row.size(); ++j) magnitudes[j] += std::fabs(row[j]);
      }
      for (size_t j = begin; j < end; ++j) factors[j] = scaled(factors[j], magnitudes[j - begin]);
    });
    Sums out(depth);
    for_parts(LoopParts(depth, 1, depth * columns), [&](size_t begin, size_t end, size_t) {
      std::vector<double> row(columns);
      for (size_t k = begin; k < end; ++k) {
        widen(g, static_cast<int64_t>(k), first, count, row.data());
        const Sum sum = dot(row.data(), factors.data(), columns);
        out.values[k] = sum.value;
        out.magnitudes[k] = sum.magnitude;
      }
    });
    return out;
  }
  const std::vector<double> ones(depth, 1);
  std::vector<Sums> of_parts(parts.count(), Sums(depth));
  for_parts(parts, [&](size_t begin, size_t end, size_t part) {
    std::vector<double> column(depth);
    for (size_t j = begin; j < end; ++j) {
      widen(g, 0, first + static_cast<int64_t>(j), g.k, column.data());
      factors[j] = scaled(factors[j], dot(column.data(), ones.data(), depth).magnitude);
      add_product(of_parts[part], column, factors[j]);
    }
  });
  Sums out(depth);
  for (const Sums& one : of_parts) {
    for (size_t k = 0; k < depth; ++k) {
      out.values[k] += one.values[k];
      out.magnitudes[k] += one.magnitudes[k];
    }
  }
  return out;
}

// A sum of so many terms, and another order of them. Nothing is near what is not finite.
bool near(double found, double expected, double magnitude, int64_t terms) {
  const double unit = 0.5 * std::numeric_limits<double>::epsilon();
  const double relative = std::max(kProductAgreement, static_cast<double>(terms) * unit);
  const double smallest = static_cast<double>(terms) * std::numeric_limits<double>::denorm_min();
  return std::isfinite(found) && std::isfinite(expected) && std::isfinite(magnitude) &&
         std::fabs(found - expected) <= relative * magnitude + smallest;
}

class Check {
 public:
  Check(const Float64Gemm& gemm, const Float64Products& from) : g_(gemm), from_(from) {}

  bool run() {
    if (g_.m == 0 || g_.n == 0) return true;
    const std::vector<int64_t> rows = doubtful_rows();
    if (static_cast<int64_t>(rows.size()) > kMostRows) {
      // Where all that is wrong is that sums of the rows are NaN, there is nothing to say.
      for (int64_t i = 0; i < kMostRows; ++i) compute_anew(rows[static_cast<size_t>(i)]);
      return false;
    }
    for (const int64_t row : rows) compute_anew(row);
    Random random(g_);
    for (int64_t i = 0; i < kElements; ++i) {
      const int64_t row = random.below(g_.m);
      compare(row, random.below(g_.n));
    }
    return true;
  }

 private:
  // Those with a sum that is not what it has to be, or is not finite.
  std::vector<int64_t> doubtful_rows() const {
    Random random(g_);
    std::vector<uint8_t> doubtful(static_cast<size_t>(g_.m));
    for (int64_t first = 0; first < g_.n; first += kColumnsAtOnce) {
      const int64_t count = std::min(kColumnsAtOnce, g_.n - first);
      std::vector<double> factors(static_cast<size_t>(count));
      for (double& factor : factors) factor = random.factor();
      const Sums inner = times_factors(g_, first, factors);
      for_parts(LoopParts(doubtful.size(), 1, static_cast<size_t>(g_.m * count)),
                [&](size_t begin, size_t end, size_t) {
                  for (size_t i = begin; i < end; ++i) {
                    if (!agrees(i, first, factors, inner)) doubtful[i] = 1;
                  }
                });
    }
    std::vector<int64_t> out;
    for (size_t i = 0; i < doubtful.size(); ++i) {
      if (doubtful[i]) out.push_back(static_cast<int64_t>(i));
    }
    return out;
  }

  bool agrees(size_t row, int64_t first, const std::vector<double>& factors,
              const Sums& inner) const {
    const size_t depth = inner.values.size(), count = factors.size();
    const size_t at = row * static_cast<size_t>(g_.n) + static_cast<size_t>(first);
    const double* a = g_.a + row * depth;
    const Sum expected = dot(a, inner.values.data(), inner.magnitudes.data(), depth);
    const auto terms = static_cast<int64_t>(depth + count);
    const double found = dot(g_.out + at, factors.data(), count).value;
    if (!near(found, expected.value, expected.magnitude, terms)) return false;
    if (!g_.magnitudes) return true;
    double sum = 0;
    for (size_t j = 0; j < count; ++j) sum += g_.magnitudes[at + j] * std::fabs(factors[j]);
    return near(sum, expected.magnitude, expected.magnitude, terms);
  }

  void compute_anew(int64_t row) const {
    for (int64_t j = 0; j < g_.n; ++j) compare(row, j);
  }

  // One element with what the plain loop gives.
  void compare(int64_t row, int64_t column) const {
    double sum = 0, magnitude = 0;
    const int64_t size = size_of(g_.b_dtype);
    for (int64_t k = 0; k < g_.k; ++k) {
      const char* b = static_cast<const char*>(g_.b) + (k * g_.b_row + column * g_.b_column) * size;
      const double term = g_.a[row * g_.k + k] * load(g_.b_dtype, b);
      sum += term;
      magnitude += std::fabs(term);
    }
    const auto at = static_cast<size_t>(row * g_.n + column);
    expect("", row, column, g_.out[at], sum, magnitude);
    if (g_.magnitudes) expect("magnitude ", row, column, g_.magnitudes[at], magnitude, magnitude);
  }

  void expect(const char* what, int64_t row, int64_t column, double found, double expected,
              double magnitude) const {
    if (std::isnan(found) && std::isnan(expected)) return;
    const bool same = std::bit_cast<uint64_t>(found) == std::bit_cast<uint64_t>(expected);
    if (same || (!from_.exact() && near(found, expected, magnitude, g_.k))) return;
    std::ostringstream words;
    words.precision(17);
    words << "[oracle] " << from_.name() << ": product " << g_.m << " x " << g_.k << " x " << g_.n
          << " in float64: " << what << "element (" << row << ", " << column << ") is " << found
          << ", the CPU has " << expected << "; the GPU that judges is wrong, or a kernel wrote to "
          << "its memory: PLUMB_ORACLE=cpu judges without it";
    throw DeviceError(words.str());
  }

  const Float64Gemm& g_;
  const Float64Products& from_;
};

}  // namespace

bool check_product(const Float64Gemm& gemm, const Float64Products& from) {
  return Check(gemm, from).run();
}

}  // namespace plumb
