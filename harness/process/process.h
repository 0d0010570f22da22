// A child process that shares what its parent has loaded, and messages between the two.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "harness/io/file.h"
#include "kernels/core/error.h"

namespace plumb::harness {

// A process took longer than it may.
class TimedOut : public Error {
 public:
  using Error::Error;
};

// One end of a connection that carries messages: any bytes, each message whole or not at all.
class Channel {
 public:
  explicit Channel(Descriptor socket) : socket_(std::move(socket)) {}

  using Clock = std::chrono::steady_clock;
  // None for 0 seconds.
  static std::optional<Clock::time_point> deadline_in(double seconds);
  enum class Event { message, closed, late, interrupted };

  // Both ends are at an end, even where a child that was made later has a copy of this one.
  void close();
  // False when the other end is gone.
  bool send(std::string_view message) const;
  // Waits for a message, at most until `deadline` (none: as long as it takes) or an interrupt.
  Event receive(std::string& message, std::optional<Clock::time_point> deadline = {}) const;

 private:
  Event receive_bytes(char* to, size_t bytes, std::optional<Clock::time_point> deadline) const;

  Descriptor socket_;
};

// Of waitpid()'s status: "" for exit code 0, "was killed by signal 11 (Segmentation fault)",
// "exited with code 3".
std::string how_it_ended(int status);

// A fork of this process. It dies when its parent does, and is gone when this object is. An
// interrupt is the parent's business: the child ignores SIGINT and SIGTERM.
class Process {
 public:
  // Runs `body` in the child, which then exits with code 0, or 1 (logging why) if body throws.
  // Neither destructors of the parent's objects nor functions given to atexit run there. The caller
  // must have no other threads, which a fork does not copy. Throws Error where no process can be
  // had.
  explicit Process(const std::function<void(const Channel&)>& body);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  const Channel& channel() const { return channel_; }
  // Closes the channel, which a child waiting for a message takes as the end of its work, and waits
  // for it; one that is still there after `grace` is killed. Says how it ended.
  std::string end(std::chrono::milliseconds grace = std::chrono::milliseconds(5000));
  // The same of one that should have sent something: "ended without a result" for exit code 0.
  std::string early_end();

 private:
  pid_t pid_ = -1;
  Channel channel_;
};

}  // namespace plumb::harness
