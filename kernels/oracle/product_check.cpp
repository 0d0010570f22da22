#include "kernels/oracle/product_check.h"

#include <bit>
#include <cmath>
#include <vector>

#include "kernels/error.h"
#include "kernels/shared_loop.h"

namespace plumb {
namespace {

constexpr int64_t kElements =
    16;  // of a product, that are computed anew whatever the rows' sums say
constexpr int64_t kMostRows = 4;  // that are computed anew

// The same numbers for equal sizes: a run can be repeated.
class Random {
 public:
  explicit Random(const Float64Gemm& g)
      : state_(static_cast<uint64_t>(g.m * 31 + g.n) * 31 + static_cast<uint64_t>(g.k)) {}

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

// The sum of a[i] b[i], in lanes that a compiler takes for vectors.
Sum dot(const double* a, const double* b, size_t n) {
  constexpr size_t kLanes = 8;
  double values[kLanes] = {}, magnitudes[kLanes] = {};
  for (size_t i = 0; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const double term = a[i + lane] * b[i + lane];
      values[lane] += term;
      magnitudes[lane] += std::fabs(term);
    }
  }
  Sum out;
  for (size_t i = n / kLanes * kLanes; i < n; ++i) {
    out.value += a[i] * b[i];
    out.magnitude += std::fabs(a[i] * b[i]);
  }
  for (size_t lane = 0; lane < kLanes; ++lane) {
    out.value += values[lane];
    out.magnitude += magnitudes[lane];
  }
  return out;
}

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

// Sum over n of b[k, n] factor[n], for every k.
Sums times_factors(const Float64Gemm& g, const std::vector<double>& factors) {
  const auto depth = static_cast<size_t>(g.k), columns = static_cast<size_t>(g.n);
  if (g.b_column == 1 && g.b_row != 1) {
    Sums out(depth);
    for_parts(LoopParts(depth, 1, depth * columns), [&](size_t begin, size_t end, size_t) {
      std::vector<double> row(columns);
      for (size_t k = begin; k < end; ++k) {
        widen(g, static_cast<int64_t>(k), 0, g.n, row.data());
        const Sum sum = dot(row.data(), factors.data(), columns);
        out.values[k] = sum.value;
        out.magnitudes[k] = sum.magnitude;
      }
    });
    return out;
  }
  const LoopParts parts(columns, 1, depth * columns);
  std::vector<Sums> of_parts(parts.count(), Sums(depth));
  for_parts(parts, [&](size_t begin, size_t end, size_t part) {
    std::vector<double> column(depth);
    for (size_t j = begin; j < end; ++j) {
      widen(g, 0, static_cast<int64_t>(j), g.k, column.data());
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

bool near(double found, double expected, double magnitude) {
  return std::fabs(found - expected) <= kProductAgreement * magnitude;
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
  // Those whose sum is not what it has to be, or is not finite.
  std::vector<int64_t> doubtful_rows() const {
    Random random(g_);
    std::vector<double> factors(static_cast<size_t>(g_.n));
    for (double& factor : factors) factor = random.factor();
    const Sums inner = times_factors(g_, factors);
    std::vector<uint8_t> doubtful(static_cast<size_t>(g_.m));
    for_parts(LoopParts(doubtful.size(), 1, static_cast<size_t>(g_.m * g_.n)),
              [&](size_t begin, size_t end, size_t) {
                for (size_t i = begin; i < end; ++i) doubtful[i] = !agrees(i, factors, inner);
              });
    std::vector<int64_t> out;
    for (size_t i = 0; i < doubtful.size(); ++i) {
      if (doubtful[i]) out.push_back(static_cast<int64_t>(i));
    }
    return out;
  }

  bool agrees(size_t row, const std::vector<double>& factors, const Sums& inner) const {
    const double* a = g_.a + row * inner.values.size();
    const size_t at = row * factors.size();
    const double expected = dot(a, inner.values.data(), inner.values.size()).value;
    const double magnitude = dot(a, inner.magnitudes.data(), inner.values.size()).magnitude;
    const double found = dot(g_.out + at, factors.data(), factors.size()).value;
    if (!near(found, expected, magnitude)) return false;
    return !g_.magnitudes || near(dot(g_.magnitudes + at, factors.data(), factors.size()).magnitude,
                                  magnitude, magnitude);
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
    if (same || (!from_.exact() && near(found, expected, magnitude))) return;
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
