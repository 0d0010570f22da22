// The gates that see every row of a sampled output: finite, and right by its sketch.
#pragma once

#include <optional>
#include <vector>

#include "harness/judge/limits.h"
#include "harness/judge/localise.h"
#include "harness/recording/sampled.h"

namespace plumb::harness {

// What the chosen rows say that all rows are held to.
struct SampleRule {
  // How the sketch is compared: as the token family's error, or to (almost) equality with the
  // oracle's (float64 runs) or the reference's (outputs that are exact).
  enum class Kind { error, oracle, reference };
  Kind kind = Kind::error;
  DType storage = DType::f32;
  double floor = 0;                   // F_T
  double roundings = 1;               // Floors::roundings
  double max_abs = 0;                 // largest |o|; the recorder always chooses its row
  std::optional<double> token_error;  // of the rounded model's chosen rows, instead of r's sketch
  bool beside_reference = false;      // r's sketch counts, too: y's bits are a right kernel's
  double gain = 0;                    // with it: |g| of the model's chosen rows
  const Spread* spread = nullptr;     // of simulated kernels; null where there is none
};

// "rows finite" and, where the sample is comparable, "sketch":
//   error: max_g sqrt(mean_j (y_gj - o_gj)^2 / columns) / s_g <= c kappa max(the same of r, F_T),
//     s_g = max(RMS_g(o), 2^-10 median), kappa with n_g = 16 values per group;
//   and "sketch gain", the gain of all rows by all products: what is coherent over all rows shows
//     where no row shows it;
//   oracle, reference: |y_gj - o_gj| <= columns 1e-12 max|o|, as the largest share of that.
// `layout` is that of the chosen rows.
std::vector<Gate> sample_gates(const RowSample& sample, const Layout& layout,
                               const SampleRule& rule);

// Which rows fail, in words of the whole output's tokens.
Localisation localise_rows(const RowSample& sample, const Layout& layout, const SampleRule& rule,
                           const std::vector<Gate>& gates);

}  // namespace plumb::harness
