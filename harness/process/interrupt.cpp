#include "harness/process/interrupt.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

namespace plumb::harness {
namespace {

// A signal handler can reach nothing else.
volatile std::sig_atomic_t noted = 0;
int ends[2] = {-1, -1};  // of a pipe: a flag alone could be set just before a wait begins

void note(int signal) {
  const int before = errno;
  noted = signal;
  [[maybe_unused]] const ssize_t written = ::write(ends[1], "", 1);
  errno = before;
}

}  // namespace

Interrupted::Interrupted() : Error("interrupted by " + signal_name(noted)) {}

void catch_interrupts() {
  if (ends[0] >= 0) return;
  require<Error>(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0, "interrupts",
                 "no pipe: ", std::strerror(errno));
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

int interrupt() { return noted; }

std::string signal_name(int signal) { return signal == SIGINT ? "SIGINT" : "SIGTERM"; }

int interrupt_descriptor() { return ends[0]; }

}  // namespace plumb::harness
