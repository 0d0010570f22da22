// What comparisons of devices found, for people. Nothing here prints.
#pragma once

#include <string>
#include <vector>

#include "harness/run/compare.h"

namespace plumb::harness {

// A row per block and dtype: how often the devices agree, which of them is alone and how often,
// the share of equal bits where contracts agree, the pair that is farthest apart. Then every
// finding but agreement, once per block and dtype, with contracts, an example and how to repeat it.
// `devices`: in the order of the comparisons' results.
std::string comparison_text(const std::vector<Comparison>& comparisons,
                            const std::vector<std::string>& devices, bool colour = false);

}  // namespace plumb::harness
