// One output tensor of one checkpoint, with everything that is needed to judge it: what is
// measured, what it is held to, and what correct kernels may do.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "harness/recording/sampled.h"
#include "harness/recording/spread.h"
#include "kernels/core/tensor.h"
#include "kernels/ops/contract.h"

namespace plumb::harness {

// What is measured. All tensors are in host memory and have y's shape (valid broadcasts). The
// oracle is o = r + delta in double, or `oracle` where it is defined (a run in another dtype than
// the recording's).
struct Evidence {
  std::string name;                 // "out"
  std::vector<std::string> axes;    // one per dimension: batch, token, head, ...
  std::vector<std::string> labels;  // what to call them, where not that (Layout)
  Tensor y;          // what the device made, in contract.storage (f64: the float64 rule)
  Tensor reference;  // r; with `oracle` and a model it may be undefined
  Tensor delta;      // f32; undefined: zero
  Tensor oracle;     // f64; overrides r + delta
  Tensor model;      // rounded model m; undefined: no conformance
  // Correct kernels that round elsewhere, whose errors a correct y may have, too.
  std::vector<Tensor> peers;
  Tensor valid;  // bool; undefined: all
  std::vector<std::string> valid_axes;
  // Bool, of rows that correct kernels do not agree on, which no limit is for; undefined: not
  // known.
  Tensor ill_conditioned;
  // Where the recording has some rows only: what is known of all. The tensors above hold those
  // tokens of the output.
  std::optional<RowSample> sample;
  // |our float64 block on the recorded operands - o|, as the largest share of what is allowed.
  std::optional<double> float64_share;
  std::string float64_at;  // where that is

  // What y must look like: r, or o in a run of another dtype.
  const Tensor& expected() const { return reference.defined() ? reference : oracle; }
  bool has_expected_shape() const { return y.defined() && y.shape() == expected().shape(); }
};

// Few rounded values that every output of a row is made of: the inner vector of an adapter.
struct Bottleneck {
  int64_t width = 0;  // values of one row; 0: there is none
  Stage stage;        // the sum that each of them is
};

// What it is held to.
struct Rule {
  Contract contract;
  std::vector<Stage> stages;          // the sums on the way to an element
  double max_abs_score = 0;           // attention only
  std::vector<Stage> cascade_stages;  // conformance: stages whose flips feed a later sum (GLU MLP)
  Bottleneck bottleneck;              // conformance: of an adapter
  int64_t cascade_outputs = 0;  // conformance: outputs that one upstream rounding feeds (eager
                                // sdpa: head_dim, norms: values of one significand)
  bool exact = false;           // bitwise contract: copy, mask, KV write, embedding without scale
  bool held_to_model = false;   // contracts that are not the reference's: S(ref) = min(S(m), S(r))
  bool coarser = false;         // rounds more often than the reference: S(ref) = S(m)
  bool conformance = true;      // false where m is not reproducible (flash-order attention)
  bool composite = false;       // made of blocks: closed forms of its sums say little
  bool leaf = false;            // conformance: no rounded value feeds a sum
  bool is_model = false;        // conformance: y is to be m itself, whatever the reference is
  bool rounds_values_alone = false;  // the one sum is of values that were rounded before
  bool unlike = false;               // of such an output: it follows none of its ways
  // Conformance: how far roundings at other points move an element, in 2 u of it.
  double others = 0;
  std::string rounding;  // which roundings its bits follow, where that was inferred
};

// What correct kernels may do.
struct Allowance {
  std::optional<Spread> spread;  // of simulated ones, as recorded
  std::string narrowed;          // where the recorded run rounded below its dtype, in words
  double unstable = 0;           // the reference's bits differed between two runs, by this error
  // Conformance: what simulated kernels show of the model's bits, where that is no recorded m.
  std::optional<SpreadOf> bits;
  // Simulated kernels of our own block, for where the recording has no spread.
  std::function<std::vector<Tensor>(int count)> simulate;
  // The same with other roundings, for composites that do not round where the reference does.
  std::function<std::vector<Tensor>(int count)> redraw;
};

struct OutputCase {
  Evidence evidence;
  Rule rule;
  Allowance allowance;
};

}  // namespace plumb::harness
