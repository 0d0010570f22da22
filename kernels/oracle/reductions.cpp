// Reductions in float64, elements in ascending order. Formulas and roundings: ops.h.
#include "kernels/ops/reductions.h"

#include <algorithm>
#include <array>

#include "kernels/ops/reduce_call.h"
#include "kernels/oracle/doubles.h"
#include "kernels/oracle/oracle_ops.h"
#include "kernels/oracle/wider.h"

namespace plumb {
namespace {

// Which result each element of x belongs to, elements and results in row-major order.
std::vector<size_t> results_of(const ReduceCall& call) {
  std::array<size_t, kMaxRank> steps{};
  size_t step = 1;
  for (int axis = call.x.rank() - 1; axis >= 0; --axis) {
    if (call.axes.has(axis)) continue;
    steps[static_cast<size_t>(axis)] = step;
    step *= extent(call.x, axis);
  }
  std::vector<size_t> out(static_cast<size_t>(call.x.numel()));
  for (size_t i = 0; i < out.size(); ++i) {
    size_t rest = i;
    for (int axis = call.x.rank() - 1; axis >= 0; --axis) {
      out[i] += rest % extent(call.x, axis) * steps[static_cast<size_t>(axis)];
      rest /= extent(call.x, axis);
    }
  }
  return out;
}

}  // namespace

void OracleOps::do_reduce(const ReduceCall& call) {
  if (wider::has(call.x.dtype())) return wider::reduce(call);
  using State = reductions::State<double, double>;
  const std::vector<double> x = values_of(call.x);
  const std::vector<size_t> results = results_of(call);
  const Noise noise(call.x.dtype());
  const Doubles m{0, 0, noise};
  const auto count = static_cast<double>(call.count);
  std::vector<double> values(static_cast<size_t>(call.out.numel()));
  with_reduction(call.reduction(), [&]<class F>() {
    const State start{F::template start<double>(m), 0};
    std::vector<State> states(values.size(), start), magnitudes = states;
    std::vector<double> seen(values.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t r = results[i];
      states[r] = F::step(m, states[r], x[i], seen[r]++);
      if (noise.on()) magnitudes[r] = F::step(m, magnitudes[r], std::fabs(x[i]), 0.0);
    }
    for (size_t r = 0; r < values.size(); ++r) {
      State& s = states[r];
      // What is summed up is off as a sum of its terms' magnitudes.
      double& sum = F::kBeside == reductions::Beside::value ? s.beside : s.value;
      const bool sums = call.row.bits != OpBits::exact && noise.on();
      const State& most = magnitudes[r];
      const bool beside = F::kBeside == reductions::Beside::value;
      if (sums)
        sum = noise.sum(sum, beside ? s.beside : most.value, static_cast<size_t>(call.count));
      values[r] = F::finish(m, s, count);
    }
  });
  if (call.row.bits == OpBits::exact) move(call.out, values);
  else put(call.out, values, call.row.name);
}

}  // namespace plumb
