// How much memory operator new hands out.
#pragma once

#include <cstdint>

namespace plumb::harness {

int64_t allocated_bytes();  // now
int64_t peak_bytes();       // since the last reset
void reset_peak();          // to what is allocated now

// The most that `run` holds at once beyond what is allocated before it.
template <class Run>
int64_t peak_of(Run run) {
  const int64_t before = allocated_bytes();
  reset_peak();
  run();
  return peak_bytes() - before;
}

}  // namespace plumb::harness
