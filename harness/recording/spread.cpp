#include "harness/recording/spread.h"

#include <algorithm>

namespace plumb::harness {

const SpreadOf* Spread::find(std::string_view gate) const {
  const auto found =
      std::find_if(gates.begin(), gates.end(), [&](const SpreadOf& of) { return of.gate == gate; });
  return found == gates.end() ? nullptr : &*found;
}

}  // namespace plumb::harness
