// Limits without hand-tuned tolerances, from the contract and the reference's own error.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "harness/judge/statistics.h"
#include "harness/recording/spread.h"
#include "kernels/ops/contract.h"

namespace plumb::harness {

// Every constant of the judge. They come from a simulation of correct and broken blocks in bf16,
// fp16 and fp32 (tests/harness/simulation_test.cpp holds a piece of it) and from runs on real
// hardware.
struct LimitConstants {
  double rounding = 0.43;           // RMS of one rounding in units of u, log-uniform significands
  double nearest_growth = 0.3;      // error of a sum of n terms: 0.3 sqrt(n) u_acc
  double truncation_growth = 0.5;   // 0.5 (n / block) u_acc for truncating accumulators
  double element_accumulation = 4;  // F_E = u_store + 4 F_acc
  double c_narrow = 2;              // 16-bit storage and narrower
  double c_f32 = 4;
  double kappa_widening = 3;
  int64_t smallest_group = 8;       // smaller groups are left out
  double smallest_scale = 0x1p-10;  // of a group or row, relative to the median one
  double gain_of_reference = 4;
  double gain_smallest = 0.25;  // k_g = max(0.25, 2 / sqrt(rows)), for fp32 storage 2
  double gain_rows = 2;
  double gain_f32 = 2;
  double gain_roundings = 2;        // u of fp32: of a constant (1 / cap), and of what is made of it
  int64_t gain_least = 64;          // fewer elements have no gain of their own
  double group_gain_chance = 1e-9;  // that a right output has a channel, or head, with a larger one
  double group_gain_smallest = 0.25;  // of the group's error: what more rows do not make smaller
  double float64_relative = 1e-12;    // agreement of two float64 derivations, of max |o|
  double float64_delta = 0x1p-24;     // and the rounding of delta to f32
  int64_t conformance_least = 64;     // fewer elements prove nothing about bits
  double conformance_base = 0.003;
  double conformance_growth = 3;
  double conformance_count = 8;
  double conformance_sigmas = 3;
  double conformance_cascade = 2;
  double conformance_aside = 1e-4;  // chance that a bottleneck turns over more rows than set aside
  double conformance_noise = 8;  // of float32, in its u, of the median element: x/2 (1 + erf) at -4
  double conformance_undetermined = 32;  // ulp / noise below which one ulp may differ
  double furthest_bit = 4;        // 2 u that an element may be off where no rounded value is summed
  double furthest_of_others = 2;  // the same, of what other roundings move one
  double crowd_heterogeneity = 3;  // of the share of bits: some channels have more than others
  double crowd_chance = 1e-9;      // that a right output has a channel with more
  int64_t spread_runs = 16;        // simulated where the recording has none
  double spread_deviations = 10;   // of a statistic's mean over simulated kernels
  double bits_of_largest = 3;      // bits that differ: 3 largest + 8, or by deviations
  double spread_worth = 128;       // statistic / limit beyond which no simulation can acquit
  double redraw_worth = 8;         // the same of roundings that are drawn again
  double no_less_accurate = 1.5;   // errors of a rounded model over the reference's
  double far_beyond_floor = 8;     // of a reference's error, over what a right one may have
  double ill_conditioned = 0.1;    // error of simulated correct kernels, of a row or all
  double chain_narrow = 1.5;     // c of chained errors: real models' correct code stays below 1.03
  double chain_f32 = 4;          // plain sums against a blocked reference
  double chain_excess = 2;       // chained error over its forecast; correct code: 1.08
  double chain_saturated = 0.1;  // a reference that far off is no witness
  double chain_float64 = 1e-11;  // agreement of two float64 chains, of max |o|
  double winner_deviations = 4;  // of what decides a token's winner, whose errors are normal
  double divergence = 0.5;       // KL of logit errors of RMS e is e^2 / 2
};
inline constexpr LimitConstants kLimits;

struct Floors {
  double accumulation = 0;  // F_acc
  double norm = 0;          // F_T = F_A = 0.43 u_store + F_acc
  double element = 0;       // F_E = u_store + 4 F_acc
  // What a contract rounds more than its rounded model, as a factor of errors: flash attention
  // rounds its weights too, by as much as the output and independently, hence sqrt(2).
  double roundings = 1;
};

// F_acc of the stages alone.
double accumulation_floor(const std::vector<Stage>& stages);
// max_abs_score: largest |score| of an attention (0: none), which costs u_acc max_abs_score in exp.
Floors floors(const Contract& contract, const std::vector<Stage>& stages, double max_abs_score);

// The factor c of a limit.
double c_of(DType storage);

// 1 + 3 / sqrt(n (1 + 2 ln G)): the largest RMS of G groups of n elements is above the typical one.
double kappa(int64_t group_size, int64_t groups);

// One factor of a limit, by name, for reports.
struct Term {
  std::string_view name;
  double value = 0;
};

// One comparison: passed = !!(statistic <= limit), so that NaN fails.
struct Gate {
  std::string name;  // "tensor", "token", "token x head", "channel", "tile", "element", "gain", ...
  double statistic = 0;
  double limit = 0;
  std::vector<Term> derivation;  // c, kappa, reference, floor, ...
  bool passed = false;
  std::string where;  // worst group or element in words; "" where the gate has no place
};
Gate make_gate(std::string name, double statistic, double limit, std::vector<Term> derivation = {},
               std::string where = {});
// statistic / limit: at most 1 for a gate that passed, Inf where the statistic is NaN or the limit
// 0.
double ratio(const Gate& gate);
// S(y) <= c kappa r max(S(reference), floor), r: Floors::roundings.
Gate ratio_gate(std::string name, double y, double c, double kappa, double r, double reference,
                double floor, std::string where);

// The gates on the decisive statistics of y, `reference` being the same statistics of the
// reference: S(y) <= c kappa max(S(reference), F), or the spread's limit where that is larger.
// Where the groups of a family differ in size, the worst one by v_g / kappa_g is shown: v_g(y) <= c
// kappa_g max(max_g v_g(reference) / kappa_g, F). The gain has no gate for a constant o, where one
// rounding is coherent by nature.
std::vector<Gate> statistic_gates(const Statistics& y, const Statistics& reference,
                                  const ReferenceScales& scales, const Floors& floors,
                                  const Spread* spread = nullptr);

// Whether errors are at most 1.5 times the other's, or those of the floors.
bool no_less_accurate(const Statistics& errors, const Statistics& others, const Floors& floors);

// What a gain may be: max(4 |g| of the reference, k max(E_T of the reference, floor)), k smaller
// the more rows there are.
Gate gain_gate(std::string name, double gain, double reference, double reference_tensor,
               double floor, int64_t elements, int64_t rows, DType storage);

// Allows what simulated correct kernels show of the gate, if that is more.
void widen(Gate& gate, const Spread* spread, DType storage);

}  // namespace plumb::harness
