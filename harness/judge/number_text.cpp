#include "harness/judge/number_text.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace plumb::harness {

std::string two_digits(double x) {
  if (std::isnan(x)) return "nan";  // of either sign
  constexpr double kLeast = 99.5, kMost = 1e6;
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.2g", x);
  const double rounded = std::strtod(buffer, nullptr);
  if (std::fabs(x) >= kLeast && std::fabs(rounded) < kMost) {
    std::snprintf(buffer, sizeof buffer, "%.0f", rounded);
  }
  return buffer;
}

}  // namespace plumb::harness
