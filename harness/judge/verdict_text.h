// A failed verdict in one line.
#pragma once

#include <string>
#include <vector>

#include "harness/judge/verdict.h"

namespace plumb::harness {

// "head 3, token 5: token x head error 3.1e-02, allowed 7.4e-03 (reference 3.6e-03), 4.2x; head 3,
// token >= 5". The gate that comes first: classes, padding, bits, then the one that is exceeded by
// the largest factor. nameless: the axes have no names.
struct WrongClass {
  double y = 0, expected = 0;  // of the first element of a wrong class
};
std::string failure_text(const OutputVerdict& verdict, const WrongClass& first, bool nameless);

}  // namespace plumb::harness
