// How much memory a run may hold.
#pragma once

#include <cstdint>

namespace plumb::harness {

// Half of what the system has available, or of what this process's group may have.
int64_t memory_by_default();

}  // namespace plumb::harness
