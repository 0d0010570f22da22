// Changes of a right result that are wrong in every block.
#pragma once

#include <functional>
#include <vector>

#include "tests/faults/wrong_ops.h"

namespace plumb::harness::testing {

// `t` tells the shape.
using Edit = std::function<void(Values&, const Tensor& t)>;

struct NamedEdit {
  const char* name;
  Edit change;
};

void shifted(Values& v, const Tensor& t);      // by one element, the first to the end
void next_number(Values& v, const Tensor& t);  // the last element off by one unit

// Of any result, and of one that is only moved: there rounding and scale are wrong, too.
std::vector<NamedEdit> edits();
std::vector<NamedEdit> edits_of_moved();

}  // namespace plumb::harness::testing
