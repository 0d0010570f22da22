// What the limits of an output are derived from: the reference, its rounded model, floors, and
// simulated correct kernels.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/judge/group_gains.h"
#include "harness/judge/limits.h"
#include "harness/judge/output_case.h"
#include "harness/recording/layout.h"

namespace plumb::harness {

// The arrays of a case as [rows, columns] doubles; empty where the case has none. delta: of the
// float64 rule alone.
struct CaseArrays {
  Layout layout;
  std::vector<double> y, r, delta, o, model;
  std::vector<uint8_t> valid;
};
CaseArrays load_arrays(const Evidence& output);

// What limits need of an output's elements: sums over them, made wherever they are.
struct Figures {
  Statistics statistics;
  ColumnErrors columns;
};
Figures figures_of(const std::vector<double>& values, const ReferenceScales& scales);

// The figures that a limit is derived from.
struct KnownFigures {
  std::optional<Figures> reference, model;
  std::vector<Figures> peers;  // of correct kernels that round elsewhere
};
KnownFigures known_figures(const Evidence& output, const CaseArrays& arrays,
                           const ReferenceScales& scales);

// The recorded spread, where it says something of this run: null where the recorded run rounded
// below its dtype, and of a 16-bit kernel with other rounding points than that run's.
const Spread* recorded_spread(const Allowance& allowance, const Rule& rule, DType dtype_of_y);

bool all_passed(const std::vector<Gate>& gates);

// Whether a model's error over the whole tensor is at most kLimits.no_less_accurate times the
// reference's (in another dtype: that of `eager`), or is below the floor. Not its worst groups:
// those of two roundings are draws, which their gates allow for.
bool tensor_no_less_accurate(const Evidence& evidence, const Rule& rule, const Tensor& model,
                             const Tensor& eager);

class LimitBasis {
 public:
  // All arguments must outlive this. No tensor of the output is looked at, but those of kernels
  // that it can simulate.
  LimitBasis(const Rule& rule, const Allowance& allowance, const KnownFigures& known,
             const ReferenceScales& scales, const GainScales& gains, const Floors& floors);

  // The statistics that are used as S(ref).
  const Statistics& reference() const { return reference_; }
  // Those of the recorded reference itself, where there is one.
  const Statistics* recorded() const {
    return known_.reference ? &known_.reference->statistics : nullptr;
  }
  const Floors& floors() const { return floors_; }
  // Why the recorded reference is not believed; empty where it is.
  const std::string& suspicion() const { return suspicion_; }
  // Why nothing is decidable: correct kernels differ as much. Empty where they do not.
  std::string ill_conditioned() const;
  // Whether a row may be ill conditioned, by the statistics used as S(ref).
  bool may_have_ill_rows() const;

  // The gates on y. Where one fails and the recording has no spread, our own block's simulated
  // kernels have a say; a little beyond them, of a composite that does not round where the
  // reference does, those with roundings of their own.
  std::vector<Gate> gates(const Figures& y);

 private:
  void hold_to_all_ways(std::vector<Gate>& gates) const;
  std::vector<Gate> gain_gates(const ColumnErrors& y) const;
  void lower_floors();
  void choose_reference();
  void admit_peers();
  bool suspects(const Statistics& trusted);
  bool admissible() const;
  bool simulate();
  bool redraw();
  Spread spread_over(const std::vector<Tensor>& runs) const;

  const Rule& rule_;
  const Allowance& allowance_;
  const KnownFigures& known_;
  const ReferenceScales& scales_;
  const GainScales& gains_;
  Floors floors_;
  Statistics reference_;
  ColumnErrors reference_columns_;
  std::string suspicion_;
  const Spread* spread_ = nullptr;
  Spread own_;
};

}  // namespace plumb::harness
