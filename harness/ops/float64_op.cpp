#include "harness/ops/float64_op.h"

#include <cmath>

#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

constexpr double kUnit = 0x1p-53;
constexpr double kOfOracle = 0.5;     // its own rounding, in units of the last place
constexpr double kOfLibraries = 2.5;  // functions of GPUs and of libm
constexpr double kOfDerivatives = 8;  // that have several steps

struct Allowed {
  double ulps;
  double of_inputs;  // as often what a last place of each input changes
};

Allowed allowed_of(const OpRow& row) {
  if (!row.formula) return {1, 0};
  const double ulps = with_formula(*row.formula, []<class F>() { return F::kUlps; });
  if (ulps == formulas::kUnmeasured) return {kOfDerivatives, kOfDerivatives};
  if (ulps == formulas::kComposed) return {ulps, ulps};
  return {ulps == formulas::kOneFunction ? kOfLibraries : ulps, 0};
}

double at(const Tensor& t, int64_t i) { return t.data<double>()[i]; }

Tensor changed(const Tensor& t, const std::function<double(double)>& change) {
  if (!t.defined() || t.dtype() != DType::f64) return t;
  const Tensor out = host_tensor(DType::f64, t.shape());
  for (int64_t i = 0; i < t.numel(); ++i) out.data<double>()[i] = change(at(t, i));
  return out;
}

}  // namespace

Gate float64_op_gate(const JudgedOp& judged, size_t output, const Tensor& o, int64_t terms,
                     const std::function<Tensor(const std::vector<Tensor>&)>& oracle) {
  const Allowed allowed = allowed_of(row_of(judged.op));
  const Tensor& y = judged.outputs[output];
  std::vector<double> more(static_cast<size_t>(o.numel()), 0);
  const auto add = [&](const std::vector<Tensor>& inputs, const auto& share) {
    const Tensor other = oracle(inputs);
    for (size_t i = 0; i < more.size(); ++i) {
      more[i] += share(at(other, static_cast<int64_t>(i)), at(o, static_cast<int64_t>(i)));
    }
  };
  for (size_t i = 0; allowed.of_inputs > 0 && i < judged.inputs.size(); ++i) {
    std::vector<Tensor> inputs = judged.inputs;
    inputs[i] = changed(inputs[i], [](double x) { return x * (1 + 2 * kUnit); });
    add(inputs,
        [&](double moved, double value) { return allowed.of_inputs * std::fabs(moved - value); });
  }
  // A product's factors may have either sign, and what is behind it.
  for (const double sign : {1.0, -1.0}) {
    if (terms == 0) break;
    std::vector<Tensor> inputs = judged.inputs;
    for (Tensor& t : inputs) t = changed(t, [](double x) { return std::fabs(x); });
    inputs[0] = changed(inputs[0], [&](double x) { return sign * x; });
    add(inputs, [&](double magnitude, double) {
      return static_cast<double>(terms + 2) * kUnit * std::fabs(magnitude);
    });
  }
  double worst = 0;
  int64_t place = -1;
  for (int64_t i = 0; i < o.numel(); ++i) {
    const double exact = at(o, i), off = std::fabs(at(y, i) - exact);
    if (!std::isfinite(exact) || !std::isfinite(off) || off == 0) continue;  // classes are judged
    const double limit =
        (allowed.ulps + kOfOracle) * spacing(DType::f64, exact) + more[static_cast<size_t>(i)];
    if (!(off / limit > worst)) continue;
    worst = off / limit;
    place = i;
  }
  return make_gate("float64 element", worst, 1, {{"ulps", allowed.ulps + kOfOracle}},
                   place < 0 ? "" : text("element ", place));
}

}  // namespace plumb::harness
