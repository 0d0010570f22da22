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
CaseArrays load_arrays(const OutputCase& output);

// The recorded spread, where it says something of this run: null where the recorded run rounded
// below its dtype, and of a 16-bit kernel with other rounding points than that run's.
const Spread* recorded_spread(const OutputCase& output);

bool all_passed(const std::vector<Gate>& gates);

// Whether a model's error over the whole tensor is at most kLimits.no_less_accurate times the
// reference's (in another dtype: that of `eager`), or lies below the floor. Not its worst groups:
// those of two roundings are draws, which their gates allow for.
bool tensor_no_less_accurate(const OutputCase& output, const Tensor& model, const Tensor& eager);

class LimitBasis {
 public:
  // All arguments must outlive this.
  LimitBasis(const OutputCase& output, const CaseArrays& arrays, const ReferenceScales& scales,
             const Floors& floors);

  // The statistics that stand for S(ref).
  const Statistics& reference() const { return reference_; }
  // Those of the recorded reference itself, where there is one.
  const std::optional<Statistics>& recorded() const { return of_r_; }
  const Floors& floors() const { return floors_; }
  // Why the recorded reference is not believed; empty where it is.
  const std::string& suspicion() const { return suspicion_; }
  // Why nothing is decidable: correct kernels differ as much. Empty where they do not.
  std::string ill_conditioned() const;
  // Whether a row may be ill conditioned by what stands for the reference.
  bool may_have_ill_rows() const;

  // The gates on y. Where one fails and the recording has no spread, our own block's simulated
  // kernels have a say; a little beyond them, of a composite that does not round where the
  // reference does, those with roundings of their own.
  // `skipped`: elements of y that do not count.
  std::vector<Gate> gates(const Statistics& y, const std::vector<uint8_t>& skipped);

 private:
  std::vector<Gate> gain_gates(const std::vector<uint8_t>& skipped) const;
  ColumnErrors errors_of(const std::vector<double>& values) const;
  void lower_floors();
  void choose_reference();
  void admit_peers();
  bool suspects(const Statistics& trusted);
  bool admissible() const;
  bool simulate();
  bool redraw();
  Spread spread_over(const std::vector<Tensor>& runs) const;

  const OutputCase& case_;
  const CaseArrays& arrays_;
  const ReferenceScales& scales_;
  Floors floors_;
  std::optional<Statistics> of_r_, of_model_;
  Statistics reference_;
  ColumnErrors reference_columns_;
  std::string suspicion_;
  const Spread* spread_ = nullptr;
  Spread own_;
};

}  // namespace plumb::harness
