// Plain float64 versions of Mamba2's ops with one thing to get wrong: see wrong_ops.h.
#pragma once

#include "tests/faults/wrong_ops.h"

namespace plumb::harness::testing {

struct ConvSpec {
  bool flipped = false;      // first tap for the current token
  int64_t dropped = 0;       // oldest taps missing
  int64_t late = 0;          // tokens of the future that are seen
  bool keeps_first = false;  // the state keeps the first columns instead of the last
  int64_t missing = 0;       // newest columns that the state lacks
  bool round_products = false;
  bool round_sum = true;  // R() before the activation
};
void wrong_conv(const Tensor& out, const Tensor& state_after, const Tensor& x, const Tensor& weight,
                const Tensor& bias, const Tensor& state_before, std::optional<Activation> function,
                const ConvSpec& spec);

struct ScanSpec {
  bool softplus = true;
  bool tiled_groups = false;              // head h uses group h mod G
  bool skip_of_input = false;             // D dt x instead of D x
  double decay = 1;                       // times, inside the exponential; 0: no decay
  bool input_by_dt = true;                // dt in dt x b
  bool clamps_step = false;               // the step form clamps dt to at least 0.5
  int64_t forgets_every = 0;              // tokens after which the state is zero again
  bool keeps_decay_only = false;          // the last token's input is missing from the kept state
  std::optional<DType> state_dtype = {};  // that the state is stored in between calls
  bool round_step = true;                 // the step form's roundings
};
void wrong_scan(const Tensor& y, const Tensor& state_after, const SsdInputs& in,
                const SsdParams& params, const ScanSpec& spec);

struct GatedSpec {
  bool gate_after = false;  // norm(x) silu(gate)
  bool gated = true;
  bool sigmoid = false;      // x sigmoid(gate)
  bool one_group = false;    // statistics of the whole row
  bool first_group = false;  // statistics of the row's first group for all
  std::optional<double> eps = {};
  int64_t dropped = 0;  // last terms missing from the sums
  bool weight = true;
  bool round_normalised = true;
};
void wrong_gated_norm(const Tensor& out, const Tensor& x, const Tensor& gate, const Tensor& weight,
                      const GatedRmsNormParams& params, const GatedSpec& spec);

}  // namespace plumb::harness::testing
