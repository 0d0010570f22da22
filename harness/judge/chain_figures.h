// A chain: a whole model run from ids, every layer's input being what the device made before it.
// The figures of its checkpoints and what follows from them. Errors are E(v) = sqrt(sum v^2 /
// sum o^2), o being the chained float64 oracle. NaN: a figure that there is not.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/dtype.h"

namespace plumb::harness {

inline constexpr double kNoFigure = std::numeric_limits<double>::quiet_NaN();
inline constexpr int64_t kAnyWidth = int64_t{1} << 40;

// What isolated error, chained error and shadow error say together about a checkpoint.
enum class Diagnosis : uint8_t {
  clean,
  kernel,     // wrong on recorded inputs, too
  wiring,     // right alone, wrong in the chain: weights, residual, state, position, aliasing
  inherited,  // right on what it was given, which is worse than forecast
  golden,     // wrong on recorded inputs, right in the chain: the recording is suspect
  here,       // of another program: wrong on the input that it had itself
  unlocated,  // of another program: too far off, and what it was given is not known
  saturated,  // the reference is too far from the oracle to judge anything
};
std::string_view name_of(Diagnosis diagnosis);

// One output of one chained checkpoint.
struct ChainRow {
  std::string checkpoint;  // its id
  std::string block;
  std::string output;
  int64_t step = 0;
  int64_t before = -1;                // the row that its main input comes from; -1: none
  double amplification = kNoFigure;   // A, as recorded
  double isolated = kNoFigure;        // error that it introduces on recorded inputs
  double isolated_limit = kNoFigure;  // of that error
  double isolated_reference = 0;      // what the reference introduces
  bool isolated_failed = false;       // by any of the isolated gates
  double chained = 0;                 // error in the chain, all that came before included
  double chained_limit = 0;
  double reference = 0;          // the reference's error in its own chain
  double introduces = 1;         // times what the reference does a right block may, by contract
  double floor = 0;              // of the blocks so far, in quadrature
  double forecast = kNoFigure;   // sqrt((A e_before)^2 + isolated^2)
  double simulated = kNoFigure;  // what simulated correct kernels may reach; none unless needed
  int64_t vectors = 1;           // compared: tokens of all rows of the batch
  int64_t width = kAnyWidth;     // elements of one, or of the narrowest that its error came through
  double shadow = kNoFigure;     // nu: error against the float64 block on the chain's own inputs
  double shadow_limit = kNoFigure;
  int64_t changed = 0;     // bytes of slots that the call has to leave as they are
  bool saturated = false;  // the reference's error is above the bound: no chained limit counts
  Diagnosis diagnosis = Diagnosis::clean;

  bool is_state() const { return output != "out"; }
  double inherited(const std::vector<ChainRow>& rows) const;  // A times the error before
  double excess() const;                                      // chained error over its forecast
  // 2 kappa: the forecast takes the reference's error for ours, and A along its direction; two
  // errors of few elements differ by chance (one token of width 64: sigma 0.3 in the logarithm,
  // as ci/excess.py measures).
  double excess_limit() const;
  bool chained_failed() const;  // ratio and excess without a simulation's leave, changed bytes
  bool shadow_failed() const { return shadow_limit == shadow_limit && !(shadow <= shadow_limit); }
};

// c of a chained limit.
double c_chain_of(DType storage);
// c kappa max(reference, floor) of n elements.
double chained_limit(DType storage, int64_t n, double reference, double floor);
// Whether a reference with this chained error is no witness; never in float32 and wider.
bool is_saturated(DType storage, double reference);

// Sets the forecasts, and widths to the narrowest on the way. Without an amplification (what came
// in was exact) the reference's own chain says what states of earlier calls add.
void forecast(std::vector<ChainRow>& rows);
void diagnose(std::vector<ChainRow>& rows);

// The first row that fails alone, else the first that fails in the shadow run; none: -1.
int64_t first_divergence(const std::vector<ChainRow>& rows);
// The first row whose chained error is above its limit, which often comes later; none: -1.
int64_t onset(const std::vector<ChainRow>& rows);

// Everything that a chain found.
struct ChainReport {
  std::vector<ChainRow> rows;    // in the order in which they ran
  std::string first_divergence;  // id of a checkpoint, or ""
  std::string onset;             // the same
  std::string culprit;           // the innermost part that can be named: an id or a path, or ""
  std::string culprit_block;     // its block or, for a path, the layer's
};

}  // namespace plumb::harness
