// Which instruction sets this binary has and this machine runs, and which one to use.
#pragma once

#include <string>
#include <vector>

#include "kernels/cpu/simd.h"

namespace plumb::cpu {

// All tables of this binary, from the narrowest to the widest.
std::vector<const Simd*> compiled_simds();
// The tables that run here, from the narrowest to the widest.
std::vector<const Simd*> usable_simds();

// The widest usable table, or the one named by PLUMB_ISA in the environment; throws UsageError when
// that one is unknown or not usable.
const Simd& choose_simd();

std::string processor_name();  // "AMD EPYC"

}  // namespace plumb::cpu
