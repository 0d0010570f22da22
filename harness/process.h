// A child process that shares what its parent has loaded, and messages between the two.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "harness/file.h"

namespace plumb {

// One end of a connection that carries messages: any bytes, each message whole or not at all.
class Channel {
 public:
  explicit Channel(Descriptor socket) : socket_(std::move(socket)) {}

  using Clock = std::chrono::steady_clock;
  enum class Event { message, closed, late };

  // Both ends are at an end, even where a child that was made later has a copy of this one.
  void close();
  // False when the other end is gone.
  bool send(std::string_view message) const;
  // Waits for a message, at most until `deadline` (none: as long as it takes).
  Event receive(std::string& message, std::optional<Clock::time_point> deadline = {}) const;

 private:
  Event receive_bytes(char* to, size_t bytes, std::optional<Clock::time_point> deadline) const;

  Descriptor socket_;
};

// A fork of this process. It dies when its parent does, and is gone when this object is.
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
  // for it; one that is still there after `grace` is killed. Says how it ended: "" for exit code 0,
  // "was killed by signal 11 (Segmentation fault)", "exited with code 3".
  std::string end(std::chrono::milliseconds grace);

 private:
  pid_t pid_ = -1;
  Channel channel_;
};

}  // namespace plumb
