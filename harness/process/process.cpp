#include "harness/process/process.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <thread>

#include "harness/io/log.h"
#include "harness/process/interrupt.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

using std::chrono::milliseconds;

int milliseconds_left(std::optional<Channel::Clock::time_point> deadline) {
  if (!deadline) return -1;
  const auto left = std::chrono::ceil<milliseconds>(*deadline - Channel::Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

// What is buffered would otherwise be written by the parent and by the child, or never.
void flush_output() {
  std::cout.flush();
  std::fflush(nullptr);
}

[[noreturn]] void run_child(const std::function<void(const Channel&)>& body, Channel channel,
                            pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::signal(SIGINT, SIG_IGN);
  ::signal(SIGTERM, SIG_IGN);
  if (::getppid() != parent) ::_exit(1);  // it died before it could be asked for
  int code = 0;
  try {
    body(channel);
  } catch (const std::exception& error) {
    log(LogLevel::error, error.what());
    code = 1;
  }
  flush_output();
  ::_exit(code);
}

}  // namespace

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    return text("was killed by signal ", signal, " (", ::strsignal(signal), ")");
  }
  const int code = WEXITSTATUS(status);
  return code == 0 ? "" : text("exited with code ", code);
}

std::optional<Channel::Clock::time_point> Channel::deadline_in(double seconds) {
  if (seconds <= 0) return std::nullopt;
  return Clock::now() + milliseconds(static_cast<int64_t>(1000 * seconds));
}

void Channel::close() {
  ::shutdown(socket_.number(), SHUT_RDWR);
  socket_ = Descriptor();
}

bool Channel::send(std::string_view message) const {
  const uint64_t size = message.size();
  std::string frame(reinterpret_cast<const char*>(&size), sizeof size);
  frame += message;
  for (size_t done = 0; done < frame.size();) {
    const ssize_t n =
        ::send(socket_.number(), frame.data() + done, frame.size() - done, MSG_NOSIGNAL);
    if (n < 0 && errno != EINTR) return false;
    if (n > 0) done += static_cast<size_t>(n);
  }
  return true;
}

Channel::Event Channel::receive_bytes(char* to, size_t bytes,
                                      std::optional<Clock::time_point> deadline) const {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = ::recv(socket_.number(), to + done, bytes - done, MSG_DONTWAIT);
    if (n == 0) return Event::closed;
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      pollfd waiting[] = {{socket_.number(), POLLIN, 0}, {interrupt_descriptor(), POLLIN, 0}};
      if (::poll(waiting, 2, milliseconds_left(deadline)) == 0) return Event::late;
      if (waiting[1].revents != 0) return Event::interrupted;
    } else if (errno != EINTR) {
      return Event::closed;  // reset by a peer that died with unread messages
    }
  }
  return Event::message;
}

Channel::Event Channel::receive(std::string& message,
                                std::optional<Clock::time_point> deadline) const {
  uint64_t left = 0;
  Event event = receive_bytes(reinterpret_cast<char*>(&left), sizeof left, deadline);
  message.clear();
  // In pieces: a size that a broken peer made up must not become an allocation.
  constexpr uint64_t kPiece = 1 << 20;
  while (event == Event::message && left > 0) {
    const size_t piece = std::min(left, kPiece), have = message.size();
    message.resize(have + piece);
    event = receive_bytes(message.data() + have, piece, deadline);
    left -= piece;
  }
  return event;
}

Process::Process(const std::function<void(const Channel&)>& body) : channel_(Descriptor()) {
  int ends[2];
  require<Error>(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "worker",
                 "cannot connect a process: ", std::strerror(errno));
  channel_ = Channel(Descriptor(ends[0]));
  Channel other{Descriptor(ends[1])};
  flush_output();
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  require<Error>(pid_ >= 0, "worker", "cannot start a process: ", std::strerror(errno));
  if (pid_ > 0) return;
  channel_ = Channel(Descriptor());
  run_child(body, std::move(other), parent);
}

Process::~Process() { end(milliseconds(0)); }

std::string Process::end(milliseconds grace) {
  if (pid_ < 0) return {};
  channel_.close();
  const pid_t pid = std::exchange(pid_, -1);
  int status = 0;
  const auto gone_within = [&](milliseconds time) {
    const auto deadline = Channel::Clock::now() + time;
    for (;;) {
      const pid_t found = ::waitpid(pid, &status, WNOHANG);
      if (found == pid || (found < 0 && errno != EINTR)) return true;
      if (Channel::Clock::now() >= deadline) return false;
      std::this_thread::sleep_for(milliseconds(1));
    }
  };
  if (grace > milliseconds(0) && gone_within(grace)) return how_it_ended(status);
  ::kill(pid, SIGKILL);
  if (gone_within(milliseconds(10000))) return how_it_ended(status);
  return "does not even end when it is killed";  // inside a driver that waits for its hardware
}

std::string Process::early_end() {
  const std::string how = end();
  return how.empty() ? "ended without a result" : how;
}

}  // namespace plumb::harness
