// What is no finite number, by short names.
#pragma once

#include <limits>

namespace plumb::harness {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

}  // namespace plumb::harness
