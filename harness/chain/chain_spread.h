// What correct kernels may show in a chain, by simulation.
//
// Closed forms take an error's growth along the reference's own direction for that of any other,
// which a single token of a narrow model does not grant. So where one is exceeded, the float64
// chain runs 16 times with every recorded output moved by the error that the reference introduces
// there, each element's times a normal number: as large as correct roundings, in other directions.
// (Where the device introduces more in a layer, by as much more; isolated gates bound that.) A
// layer's error is that of its parts, too, which states and later steps have from there: together
// at most sqrt(2) too large. Inverse frequencies move by a float32 rounding, too: the reference has
// those of the oracle, a device makes its own, and angles are off by more at every position. A
// statistic may reach mean + 10 sd of the 16: of 1,400 simulated correct blocks none did, single
// tokens included.
//
// The simulation shares the model's wiring with the device, so it counts only where the chain
// without errors reproduces the recorded oracle: to 3e-8 of the reference's error in correct models
// (the rounding of what is recorded), while eps x 10 in one norm is off by percents of it.
#pragma once

#include <optional>
#include <vector>

#include "harness/chain/chain_descent.h"

namespace plumb::harness {

inline constexpr int kSimulatedChains = 16;
inline constexpr double kSimulatedDeviations = 10;
// Of the size of what decides a token's winner, which then counts four times.
inline constexpr double kDecidingDeviations = 3;
// Share of the reference's error, or the floor, that the chain without errors may be off.
inline constexpr double kSimulationAgrees = 1e-4;

struct ChainSpread {
  std::vector<double> rows;                   // what the error of each row may reach
  std::vector<std::vector<double>> deciding;  // of rows with logits, by token: deciding_error()
  double mean_kl = 0, max_kl = 0;
};

// `judged`: of judged_tokens(). Nothing where the simulation does not count.
std::optional<ChainSpread> chain_spread(const ChainRun& run, const std::vector<ChainRow>& rows,
                                        const std::vector<Tensor>& judged);

}  // namespace plumb::harness
