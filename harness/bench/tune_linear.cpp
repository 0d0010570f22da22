#include "harness/bench/tune_linear.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

constexpr int kRounds = 7;
constexpr double kWorthwhile = 0.98;  // of the time of the device's own choice

BenchCase case_of(const LinearShape& shape) {
  const double deviation = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(shape.inner, 1)));
  BenchCase out{"linear", "linear." + to_string(shape), {}, {}};
  out.operands = {
      {"out", shape.dtype, {1, shape.rows, shape.outputs}, {}, true},
      {"x", shape.dtype, {1, shape.rows, shape.inner}, {Fill::normal}},
      {"weight", shape.dtype, {shape.outputs, shape.inner}, {Fill::normal, 0, deviation}}};
  if (shape.bias) out.operands.push_back({"bias", shape.dtype, {shape.outputs}, {Fill::normal}});
  out.bind = [bias = shape.bias](const BenchOperands& t) -> std::function<void(blocks::Context&)> {
    const Tensor b = bias ? t.at("bias") : Tensor();
    return [y = t.at("out"), x = t.at("x"), w = t.at("weight"), b](blocks::Context& ctx) {
      ctx.ops.linear(y, x, w, b);
    };
  };
  return out;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return quantile(values, 0.5);
}

}  // namespace

std::vector<LinearShape> linears_of(const BenchShape& shape, int64_t rows, DType dtype) {
  std::vector<LinearShape> out;
  const auto add = [&](int64_t outputs, int64_t inner) {
    const LinearShape one{dtype, rows, outputs, inner, false};
    if (std::find(out.begin(), out.end(), one) == out.end()) out.push_back(one);
  };
  add(shape.heads * shape.head_dim, shape.hidden);
  add(shape.kv_heads * shape.head_dim, shape.hidden);
  add(shape.hidden, shape.heads * shape.head_dim);
  add(shape.intermediate, shape.hidden);
  add(shape.hidden, shape.intermediate);
  add(shape.vocab, shape.hidden);
  return out;
}

LinearTuning tune_linear(const LinearShape& shape, Device& device, Device& oracle,
                         const Ceilings& ceilings, const BenchOptions& options) {
  LinearTuning out;
  out.shape = shape;
  TunedLinears* tuned = device.ops().tuned_linears();
  require<Unsupported>(tuned, "tune", device.name(), " has one way to compute a linear");
  const BenchCase linear = case_of(shape);
  const BenchSizes sizes{shape.rows, shape.rows, shape.dtype};
  const auto measure = [&](const std::optional<LinearWay>& way) {
    tuned->set(shape, way);
    return run_bench(linear, BenchShape{}, sizes, device, oracle, ceilings, options);
  };
  const BenchResult own = measure({});
  out.status = own.status;
  out.reason = own.reason;
  out.first = out.best = own.impl;
  if (own.status != Status::pass) return out;
  out.first_seconds = out.best_seconds = own.median;
  std::optional<LinearWay> fastest;
  std::string which;  // of several algorithms
  double least = own.median;
  for (const LinearWay& way : device.ops().linear_ways(shape)) {
    const BenchResult result = measure(way);
    if (result.status != Status::pass) continue;
    ++out.ways;
    if (result.median >= least) continue;
    least = result.median;
    fastest = way;
    which = way.choice.empty() ? "" : text(" #", out.ways);
  }
  if (fastest) {
    std::vector<double> of_first, of_best;
    int faster = 0;
    for (int round = 0; round < kRounds; ++round) {
      of_first.push_back(measure({}).median);
      const BenchResult result = measure(fastest);
      of_best.push_back(result.median);
      out.best = result.impl + which;
      faster += of_best.back() < of_first.back();
    }
    out.first_seconds = median(of_first);
    out.best_seconds = median(of_best);
    out.kept = out.best_seconds < kWorthwhile * out.first_seconds && 2 * faster > kRounds;
  }
  tuned->set(shape, out.kept ? fastest : std::nullopt);
  return out;
}

}  // namespace plumb::harness
