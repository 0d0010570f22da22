// SIGINT and SIGTERM as an event to wait for, so that what is known is written before the end.
#pragma once

#include <string>

#include "kernels/core/error.h"

namespace plumb::harness {

// Ends a wait; the program's exit code is then 128 + signal.
class Interrupted : public Error {
 public:
  Interrupted();
};

// From here on the first of the two signals is noted; the second ends the process as usual.
void catch_interrupts();
// The signal that was noted, or 0.
int interrupt();
std::string signal_name(int signal);  // "SIGINT" or "SIGTERM"
// Readable once a signal was noted; -1 while they are not caught.
int interrupt_descriptor();

}  // namespace plumb::harness
