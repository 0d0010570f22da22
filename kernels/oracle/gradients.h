// What the oracle's backward ops share: sums with their errors, and derivatives of functions.
#pragma once

#include <cmath>
#include <vector>

#include "kernels/oracle/doubles.h"

namespace plumb {

// A sum and what its error in float32 is measured in.
struct Sum {
  double value = 0, magnitudes = 0;
  size_t terms = 0;

  void add(double term) {
    value += term;
    magnitudes += std::fabs(term);
    ++terms;
  }
  double with(const Noise& noise) const { return noise.sum(value, magnitudes, terms); }
};

inline std::vector<double> values_with(const std::vector<Sum>& sums, const Noise& noise) {
  std::vector<double> out;
  for (const Sum& sum : sums) out.push_back(sum.with(noise));
  return out;
}

inline double derivative_of(const Doubles& m, double x, Activation function) {
  return with_formula(formula_of(function, Formula::silu_backward), [&]<class F>() -> double {
    if constexpr (F::kInputs == 2) return F::of(m, x, 1.0);
    return 0;
  });
}

}  // namespace plumb
