// Numbers of verdicts in words: two digits, as people write them.
#pragma once

#include <string>

namespace plumb::harness {

// "130", "0.013", "4.2": two significant digits, without an exponent from 1e-4 to a million.
std::string two_digits(double x);

}  // namespace plumb::harness
