// Faults that any op may have, planted by its row: in its outputs, in each operand, in each number
// and choice.
#pragma once

#include <string>
#include <vector>

#include "tests/faults/faulty_device.h"

namespace plumb::harness::testing {

struct GenericFault {
  std::string name;  // "x: last column missing"
  Hooks hooks;       // nothing changes in a call that lacks what is to be wrong
};

std::vector<GenericFault> generic_faults(OpId op);

}  // namespace plumb::harness::testing
