// Which inputs, outputs, weights and parameters a checkpoint of each block has:
// fixtures/schema/blocks.json.
#pragma once

#include <string>
#include <vector>

#include "harness/recording/recording.h"

namespace plumb::harness {

// A text for each name that is missing or too much, and for axes that the table has otherwise:
// "inputs: x is missing". Of block "module", which has whatever the module had, none.
// The backward of a block takes what the block does and a cotangent of some of its outputs, and
// gives gradients of what it takes.
std::vector<std::string> name_findings(const Checkpoint& checkpoint);

}  // namespace plumb::harness
