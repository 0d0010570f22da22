// The gates on small blocks computed in many correct orders, which must pass, and with one thing
// wrong, which must fail: a piece of the simulation that the limits come from.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "harness/judge/verdict.h"
#include "tests/catch.h"
#include "tests/harness/judge_support.h"

namespace plumb::harness {
namespace {

using testing::case_of;
using testing::Random;
using testing::rounded;
using testing::tensor_of;

using Values = std::vector<double>;

constexpr size_t kRows = 48, kInner = 256, kOuter = 96;

enum class Order { sequential, backward, blocked, split, exact };
constexpr Order kOrders[] = {Order::sequential, Order::backward, Order::blocked, Order::split,
                             Order::exact};

double f32(double x) { return static_cast<double>(static_cast<float>(x)); }

// Sum of terms with a rounding to `accumulator` after every addition.
double sum(const Values& terms, Order order, DType accumulator = DType::f32) {
  const auto add = [&](double a, double b) { return round_to(accumulator, a + b); };
  const auto run = [&](size_t begin, size_t end, size_t step) {
    double total = 0;
    for (size_t i = begin; i < end; i += step) total = add(total, terms[i]);
    return total;
  };
  double total = 0;
  switch (order) {
    case Order::sequential: return run(0, terms.size(), 1);
    case Order::backward:
      for (size_t i = terms.size(); i-- > 0;) total = add(total, terms[i]);
      return total;
    case Order::blocked:
      for (size_t lane = 0; lane < 16; ++lane) total = add(total, run(lane, terms.size(), 16));
      return total;
    case Order::split:
      for (size_t part = 0; part < 4; ++part) {
        total = add(total, run(part * terms.size() / 4, (part + 1) * terms.size() / 4, 1));
      }
      return total;
    case Order::exact:
      for (const double t : terms) total += t;
      return round_to(accumulator, total);
  }
  return total;
}

// Inputs as the simulation had them: five outlier channels x 20 and one activation x 600.
Values activations(Random& random, DType dtype) {
  Values x = random.normals(kRows * kInner);
  for (size_t t = 0; t < kRows; ++t) {
    for (size_t c = 0; c < 5; ++c) x[t * kInner + 17 + c * 31] *= 20;
  }
  x[5 * kInner + 40] *= 600;
  return rounded(dtype, x);
}

struct Linear {
  DType dtype;
  Values x, weight, bias;

  Linear(DType storage, uint64_t seed) : dtype(storage) {
    Random random(seed);
    x = activations(random, dtype);
    weight = rounded(dtype, random.normals(kOuter * kInner, 1 / std::sqrt(kInner)));
    bias = rounded(dtype, random.normals(kOuter, 0.5));
  }
  Values oracle() const {
    return apply(
        [](Values& terms) {
          double total = 0;
          for (const double t : terms) total += t;
          return total;
        },
        [](double s, double b) { return s + b; });
  }
  template <class Sum, class AddBias>
  Values apply(Sum total, AddBias add_bias) const {
    Values out, terms(kInner);
    for (size_t t = 0; t < kRows; ++t) {
      for (size_t n = 0; n < kOuter; ++n) {
        terms.resize(kInner);  // a wrong sum may have dropped some
        for (size_t k = 0; k < kInner; ++k) terms[k] = x[t * kInner + k] * weight[n * kInner + k];
        out.push_back(add_bias(total(terms), bias[n]));
      }
    }
    return out;
  }
  Values correct(Order order, bool fma) const {
    return apply(
        [&](Values& terms) {
          if (!fma) {
            for (double& t : terms) t = f32(t);
          }
          return sum(terms, order);
        },
        [&](double s, double b) { return round_to(dtype, f32(s + b)); });
  }
  OutputCase judged(const Values& y) const {
    const Values o = oracle();
    OutputCase c = case_of({{kRows, kOuter}, {"token", "channel"}, dtype}, y,
                           correct(Order::sequential, false), o);
    c.rule.stages = {{kInner, {}}};
    c.evidence.model = tensor_of(dtype, {kRows, kOuter}, rounded(dtype, o));
    return c;
  }
};

// LLaMA's RMSNorm: the normalised row is rounded to storage before the weight.
struct RmsNorm {
  DType dtype;
  double eps = 1e-5;
  Values x, weight;

  RmsNorm(DType storage, uint64_t seed) : dtype(storage) {
    Random random(seed);
    x = activations(random, dtype);
    for (size_t c = 0; c < kInner; ++c) x[c] = round_to(dtype, x[c] * 0.004);  // eps shows
    weight = random.normals(kInner, 0.3);
    for (double& w : weight) w = round_to(dtype, w + 1);
  }
  // Statistics of a row to the reciprocal root.
  using Inverse = std::function<double(const Values& squares)>;
  Values apply(const Inverse& inverse, const std::function<double(double, double)>& finish) const {
    Values out, squares(kInner);
    for (size_t t = 0; t < kRows; ++t) {
      for (size_t c = 0; c < kInner; ++c) squares[c] = x[t * kInner + c] * x[t * kInner + c];
      const double factor = inverse(squares);
      for (size_t c = 0; c < kInner; ++c)
        out.push_back(finish(x[t * kInner + c] * factor, weight[c]));
    }
    return out;
  }
  Inverse in_order(Order order, double n = kInner) const {
    return [this, order, n](const Values& squares) {
      Values terms = squares;
      for (double& t : terms) t = f32(t);
      return f32(1 / std::sqrt(f32(f32(sum(terms, order) / n) + f32(eps))));
    };
  }
  double round_twice(double normalised, double w) const {
    return round_to(dtype, f32(round_to(dtype, f32(normalised)) * w));
  }
  double lifted(const Values& squares) const {
    double total = 0;
    for (const double s : squares) total += s;
    return 1 / std::sqrt(total / kInner + eps);
  }
  Values correct(Order order) const {
    return apply(in_order(order), [this](double n, double w) { return round_twice(n, w); });
  }
  OutputCase judged(const Values& y) const {
    const Inverse exact = [this](const Values& squares) { return lifted(squares); };
    const Values o = apply(exact, [](double n, double w) { return n * w; });
    const Values model = apply(
        exact, [this](double n, double w) { return round_to(dtype, round_to(dtype, n) * w); });
    OutputCase c =
        case_of({{kRows, kInner}, {"token", "channel"}, dtype}, y, correct(Order::sequential), o);
    c.rule.stages = {{kInner, {}}};
    c.evidence.model = tensor_of(dtype, {kRows, kInner}, model);
    return c;
  }
};

void check(const OutputCase& c, Status expected, const std::string& what) {
  const OutputVerdict v = judge(c);
  INFO(what << " in " << name_of(c.rule.contract.storage) << ": " << v.reason);
  CHECK(v.status == expected);
}

}  // namespace

TEST_CASE("correct orders of a linear pass, wrong ones fail", "[simulation]") {
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const uint64_t seed = GENERATE(range(1, 4));
  const Linear linear(dtype, seed);
  for (const Order order : kOrders) {
    check(linear.judged(linear.correct(order, true)), Status::pass, "fused multiply-add");
    check(linear.judged(linear.correct(order, false)), Status::pass, "rounded products");
  }
  const Values right = linear.correct(Order::sequential, false);
  const auto store = [&](double s, double b) { return round_to(dtype, f32(s + b)); };
  const auto wrong = [&](const Values& y, const std::string& what) {
    check(linear.judged(y), Status::fail, what);
  };
  wrong(linear.apply(
            [](Values& t) {
              t.resize(kInner - 8);
              return sum(t, Order::sequential);
            },
            store),
        "the last 8 of K dropped");
  wrong(linear.apply([](Values& t) { return sum(t, Order::sequential); },
                     [&](double s, double) { return round_to(dtype, s); }),
        "no bias");
  wrong(linear.apply([](Values& t) { return sum(t, Order::sequential); },
                     [&](double s, double b) { return store(s, 2 * b); }),
        "bias twice");
  Values swapped = right;
  std::swap_ranges(swapped.begin() + 7 * kOuter, swapped.begin() + 8 * kOuter,
                   swapped.begin() + 8 * kOuter);
  wrong(swapped, "rows 7 and 8 swapped");
  Values stale = right;
  for (size_t t = 8; t < 16; ++t) {
    for (size_t c = 8; c < 16; ++c) stale[t * kOuter + c] = right[(t - 8) * kOuter + c];
  }
  wrong(stale, "a stale tile");
  wrong(linear.apply([](Values& t) { return sum(t, Order::sequential); },
                     [&](double s, double b) { return store(s * 1.001, b * 1.001); }),
        "0.1 % too large");
  Values truncated = linear.oracle();
  for (double& y : truncated) y = round_to(dtype, y - std::fabs(y) * unit_roundoff(dtype));
  if (dtype != DType::f32) {  // truncating the store moves less than the floor of an fp32 sum
    wrong(truncated, "a store that rounds toward zero");
    wrong(linear.apply(
              [&](Values& t) {
                for (double& x : t) x = round_to(dtype, x);
                return sum(t, Order::sequential, dtype);
              },
              store),
          "sums kept in the storage dtype");
  } else {
    Linear tf32 = linear;
    for (double& x : tf32.x) x = round_to(DType::f16, x / 1024) * 1024;  // 11 significant bits
    for (double& w : tf32.weight) w = round_to(DType::f16, w);
    wrong(tf32.correct(Order::exact, true), "products in tf32");
  }
}

TEST_CASE("correct orders of an RMSNorm pass, wrong ones fail", "[simulation]") {
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const uint64_t seed = GENERATE(range(1, 4));
  const RmsNorm norm(dtype, seed);
  for (const Order order : kOrders)
    check(norm.judged(norm.correct(order)), Status::pass, "correct");
  const auto twice = [&](double n, double w) { return norm.round_twice(n, w); };
  const auto wrong = [&](const Values& y, const std::string& what) {
    check(norm.judged(y), Status::fail, what);
  };
  RmsNorm other = norm;
  other.eps = 1e-6;
  wrong(other.apply(other.in_order(Order::sequential), twice), "eps 1e-6 for 1e-5");
  const auto mean_square = [&](const Values& s) { return sum(s, Order::exact) / kInner; };
  wrong(norm.apply([&](const Values& s) { return 1 / (std::sqrt(mean_square(s)) + norm.eps); },
                   twice),
        "eps outside the root");
  wrong(norm.apply(norm.in_order(Order::sequential, kInner + 1), twice), "n + 1 for n");
  wrong(norm.apply(
            [&](const Values& s) {
              Values fewer(s.begin(), s.end() - 1);
              return norm.in_order(Order::sequential)(fewer);
            },
            twice),
        "one term missing");
  wrong(norm.apply(norm.in_order(Order::sequential),
                   [&](double n, double w) { return twice(n, 1 + w); }),
        "1 + w for w");
  wrong(norm.apply(norm.in_order(Order::sequential), [&](double n, double) { return twice(n, 1); }),
        "no weight");
  wrong(norm.apply([&](const Values& s) { return 1 / std::sqrt(sum(s, Order::exact) + norm.eps); },
                   twice),
        "sum for mean");
  if (dtype != DType::f32) {  // more accurate than the contract: only the bits show it
    const Values once = norm.apply(norm.in_order(Order::sequential), [&](double n, double w) {
      return round_to(dtype, f32(f32(n) * w));
    });
    OutputCase c = norm.judged(once);
    wrong(once, "weight before the cast");
    CHECK(judge(c).gates.back().name == "conformance");
    c.rule.conformance = false;
    check(c, Status::pass, "weight before the cast, gates only");
  }
}

}  // namespace plumb::harness
