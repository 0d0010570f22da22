// Faults of the operations that attention and a layer are made of, each of which is a block of its
// own.
#include <algorithm>
#include <cmath>

#include "tests/faults/edits.h"
#include "tests/faults/fault.h"
#include "tests/faults/wrong_ops.h"

namespace plumb::harness::testing {
namespace {

// Element i of the result from the i-th of both operands.
template <auto Hook>
Fault pair_fault(const char* block, const char* name,
                 const std::function<double(double a, double b)>& f) {
  Fault out{block, name, {}};
  out.hooks.*Hook = [f](Call&, const Tensor& t, const Tensor& a, const Tensor& b) {
    Values v = values_of(a);
    const Values other = values_of(b);
    for (size_t i = 0; i < v.size(); ++i) v[i] = f(v[i], other[i]);
    put(t, v);
  };
  return out;
}

Fault scale_fault(const char* name, const std::function<double(double x, double factor)>& f) {
  return {"scale",
          name,
          {.scale = [=](Call& c, auto& out, auto& x, double factor, ScaleOperation operation) {
            const double by = operation == ScaleOperation::multiply ? factor : 1 / factor;
            put(out, values_of(mapped(c.ops, x, [&](double v) { return f(v, by); })));
          }}};
}

// Head h of the result is head pick(h, heads, kv_heads) of x.
Fault heads_fault(const char* name,
                  const std::function<int64_t(int64_t h, int64_t heads, int64_t kv_heads)>& pick) {
  return {"repeat_kv", name, {.repeat_heads = [pick](Call& c, auto& out, auto& x) {
            for (int64_t h = 0; h < out.dim(1); ++h) {
              const int64_t from = pick(h, out.dim(1), x.dim(1));
              c.ops.copy(out.slice(1, h, h + 1), x.slice(1, from, from + 1));
            }
          }}};
}

// Rows of probabilities from rows of scores.
Fault softmax_fault(const char* name,
                    const std::function<void(double* row, size_t n, DType storage)>& f,
                    bool truncate = false, bool narrow_only = false) {
  return {"softmax",
          name,
          {.softmax =
               [=](Call&, auto& out, auto& x) {
                 Values v = values_of(x);
                 const auto n = static_cast<size_t>(x.dim(-1));
                 for (size_t row = 0; row < v.size(); row += n) f(v.data() + row, n, x.dtype());
                 (truncate ? put_truncated : put)(out, v, "value");
               }},
          narrow_only};
}

// exp(temperature (x - max)) and their sum.
double exponentials(double* row, size_t n, double temperature = 1) {
  const double largest = *std::max_element(row, row + n);
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += row[i] = std::exp(temperature * (row[i] - largest));
  return sum;
}

void divide(double* row, size_t n, double by) {
  for (size_t i = 0; i < n; ++i) row[i] /= by;
}

// Products of the right shape of other operands.
Fault matmul_fault(
    const char* name,
    const std::function<void(Call&, Tensor& a, Tensor& b, bool transposed)>& change) {
  return {
      "matmul", name, {.matmul = [change](Call& c, auto& out, auto& a, auto& b, bool transposed) {
        Tensor first = a, second = b;
        change(c, first, second, transposed);
        c.ops.matmul(out, first, second, transposed);
      }}};
}

Hooks matmul_sums() {
  return {.matmul = [](Call&, auto& out, auto& a, auto& b, bool transposed) {
    const Values x = values_of(a), y = values_of(b);
    const auto columns = static_cast<size_t>(out.dim(3)), depth = static_cast<size_t>(a.dim(3));
    const auto rows = static_cast<size_t>(a.dim(2)),
               group = static_cast<size_t>(a.dim(1) / b.dim(1));
    Values v;
    for (size_t row = 0; row * depth < x.size(); ++row) {
      const size_t matrix = row / rows / group * depth * columns;
      for (size_t j = 0; j < columns; ++j) {
        double sum = 0;
        for (size_t p = 0; p < depth; ++p) {
          const size_t at = transposed ? j * depth + p : p * columns + j;
          sum = round_to(out.dtype(), sum + x[row * depth + p] * y[matrix + at]);
        }
        v.push_back(sum);
      }
    }
    put(out, v);
  }};
}

// The mask, already expanded to [B, H, T, S].
Fault mask_fault(const char* name, const Edit& change) {
  return {"masked_add", name, {.masked_add = [change](Call& c, auto& out, auto& x, auto& mask) {
            c.ops.masked_add(out, x, changed(c.ops, mask, [&](Values& v) { change(v, mask); }));
          }}};
}

Tensor in_bf16(Call& c, const Tensor& x) {
  return mapped(c.ops, x, [](double v) { return round_to(DType::bf16, v); });
}

}  // namespace

std::vector<Fault> add_faults() {
  const auto fault = pair_fault<&Hooks::add>;
  return {
      fault("add", "second operand twice", [](double a, double b) { return a + 2 * b; }),
      fault("add", "mean", [](double a, double b) { return (a + b) / 2; }),
  };
}

std::vector<Fault> mul_faults() {
  const auto fault = pair_fault<&Hooks::mul>;
  return {
      fault("mul", "sum", [](double a, double b) { return a + b; }),
      fault("mul", "quotient", [](double a, double b) { return b == 0 ? 0 : a / b; }),
  };
}

std::vector<Fault> div_faults() {
  const auto fault = pair_fault<&Hooks::div>;
  return {
      fault("div", "product", [](double a, double b) { return a * b; }),
      fault("div", "something added to the divisor",
            [](double a, double b) { return a / (b + 1e-3); }),
  };
}

std::vector<Fault> add_scalar_faults() {
  const auto fault = [](const char* name, const std::function<double(double, double)>& f) {
    return Fault{"add_scalar", name, {.add_scalar = [f](Call&, auto& t, auto& x, double value) {
                   Values v = values_of(x);
                   for (double& element : v) element = f(element, value);
                   put(t, v);
                 }}};
  };
  return {
      fault("number lost", [](double x, double) { return x; }),
      fault("number added twice", [](double x, double value) { return x + 2 * value; }),
      fault("difference", [](double x, double value) { return x - value; }),
      fault("product", [](double x, double value) { return x * value; }),
      fault("ten times the number", [](double x, double value) { return x + 10 * value; }),
  };
}

std::vector<Fault> scale_faults() {
  return {
      scale_fault("twice", [](double x, double f) { return x * f * f; }),
      scale_fault("added", [](double x, double f) { return x + f; }),
      scale_fault("factor in bf16",
                  [](double x, double f) { return x * round_to(DType::bf16, f); }),
  };
}

std::vector<Fault> repeat_kv_faults() {
  return {
      heads_fault("tiled", [](int64_t h, int64_t, int64_t kv) { return h % kv; }),
      heads_fault("first head for all", [](int64_t, int64_t, int64_t) { return int64_t{0}; }),
      heads_fault("in reverse",
                  [](int64_t h, int64_t n, int64_t kv) { return kv - 1 - h / (n / kv); }),
      heads_fault("off by one", [](int64_t h, int64_t n,
                                   int64_t kv) { return std::min((h + 1) / (n / kv), kv - 1); }),
  };
}

std::vector<Fault> matmul_faults() {
  return {
      matmul_fault("operands in bf16", [](Call& c, Tensor& a, Tensor& b,
                                          bool) { a = in_bf16(c, a), b = in_bf16(c, b); }),
      matmul_fault("first head for all",
                   [](Call&, Tensor&, Tensor& b, bool) { b = b.slice(1, 0, 1); }),
      {"matmul", "sums in the storage dtype", matmul_sums(), true},
  };
}

// Elements that the mask hides are judged for being finite only: what is wrong must touch others.
std::vector<Fault> masked_add_faults() {
  return {
      mask_fault("mask inverted",
                 [](Values& v, const Tensor& t) {
                   for (double& x : v) x = x == 0 ? -info(t.dtype()).max : 0;
                 }),
      mask_fault("mask twice: infinite",
                 [](Values& v, const Tensor&) {
                   for (double& x : v) x *= 2;
                 }),
      mask_fault("allowed is 1 instead of 0",
                 [](Values& v, const Tensor&) {
                   for (double& x : v) x = x == 0 ? 1 : x;
                 }),
  };
}

std::vector<Fault> softmax_faults() {
  return {
      softmax_fault("base 2", [](double* row, size_t n,
                                 DType) { divide(row, n, exponentials(row, n, std::log(2.0))); }),
      softmax_fault(
          "temperature 1 % off",
          [](double* row, size_t n, DType) { divide(row, n, exponentials(row, n, 1.01)); }),
      softmax_fault("not normalised", [](double* row, size_t n, DType) { exponentials(row, n); }),
      softmax_fault("last key not in the sum",
                    [](double* row, size_t n, DType) {
                      const double sum = exponentials(row, n);
                      divide(row, n, n > 1 ? std::fmax(sum - row[n - 1], 1e-6) : sum);
                    }),
      softmax_fault("1 added to the sum",
                    [](double* row, size_t n, DType) { divide(row, n, 1 + exponentials(row, n)); }),
      softmax_fault("masked keys leak",
                    [](double* row, size_t n, DType) {
                      const double sum = exponentials(row, n);
                      for (size_t i = 0; i < n; ++i) row[i] = std::fmax(row[i] / sum, 1e-4);
                    }),
      softmax_fault("logarithm",
                    [](double* row, size_t n, DType) {
                      divide(row, n, exponentials(row, n));
                      for (size_t i = 0; i < n; ++i) row[i] = std::fmax(std::log(row[i]), -1e4);
                    }),
      softmax_fault("shared by pairs of keys",
                    [](double* row, size_t n, DType) {
                      divide(row, n, exponentials(row, n));
                      for (size_t i = 0; i + 1 < n; i += 2)
                        row[i] = row[i + 1] = (row[i] + row[i + 1]) / 2;
                    }),
      softmax_fault("in bf16",
                    [](double* row, size_t n, DType) {
                      divide(row, n, exponentials(row, n));
                      for (size_t i = 0; i < n; ++i) row[i] = round_to(DType::bf16, row[i]);
                    }),
      softmax_fault(
          "sum in the storage dtype",
          [](double* row, size_t n, DType storage) {
            exponentials(row, n);
            double sum = 0;
            for (size_t i = 0; i < n; ++i) sum = round_to(storage, sum + row[i]);
            divide(row, n, sum);
          },
          false, true),
      softmax_fault(
          "exponentials rounded to storage",
          [](double* row, size_t n, DType storage) {
            exponentials(row, n);
            double sum = 0;
            for (size_t i = 0; i < n; ++i) sum += row[i] = round_to(storage, row[i]);
            divide(row, n, sum);
          },
          false, true),
      softmax_fault(
          "truncating store",
          [](double* row, size_t n, DType) { divide(row, n, exponentials(row, n)); }, true, true),
  };
}

}  // namespace plumb::harness::testing
