// The reference's error, which a recording states and which follows from what it stores.
#pragma once

#include <cstdint>
#include <vector>

namespace plumb::harness {

// sqrt(sum delta^2 / sum o^2) with the oracle o = r + delta, over valid elements whose r is finite;
// infinite where one is not, and is not what o is. All three have one value per element.
double reference_error(const std::vector<double>& reference, const std::vector<double>& delta,
                       const std::vector<uint8_t>& valid);

// Whether a recording may state that. NaN and infinities have no figure: they are equal.
bool is_stated(double stated, double computed);

}  // namespace plumb::harness
