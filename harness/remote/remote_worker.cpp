#include "harness/remote/remote_worker.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "harness/process/process.h"

namespace plumb::harness {
namespace {

constexpr double kHelloSeconds = 60;
constexpr int kNotFound = 127;

}  // namespace

RemoteWorker::RemoteWorker(std::string name, std::vector<std::string> command)
    : name_(std::move(name)), command_(std::move(command)) {
  start();
}

RemoteWorker::~RemoteWorker() { end(true); }

// Between fork and exec only what a process of several threads may do there.
void RemoteWorker::start() {
  std::vector<char*> words;
  for (std::string& word : command_) words.push_back(word.data());
  words.push_back(nullptr);
  int ends[2];
  require<DeviceError>(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0,
                       name_.c_str(), "no connection: ", std::strerror(errno));
  socket_ = Descriptor(ends[0]);
  Descriptor theirs(ends[1]);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  require<DeviceError>(pid_ >= 0, name_.c_str(), "no process: ", std::strerror(errno));
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::signal(SIGINT, SIG_IGN);
    ::signal(SIGTERM, SIG_DFL);
    if (::getppid() != parent) ::_exit(1);
    ::dup2(ends[1], STDIN_FILENO);
    ::dup2(ends[1], STDOUT_FILENO);
    ::execvp(words[0], words.data());
    ::_exit(kNotFound);
  }
  theirs = Descriptor();  // or its end would not be seen
  const std::string where = text('[', name_, "] ");
  try {
    hello_ = hello_of(read_message(socket_.number(), name_, kHelloSeconds));
  } catch (const NoMessage& error) {
    const bool silent = *error.what() == '\0';
    const std::string how = end(!silent);
    throw DeviceError(
        where + (silent ? how.empty() ? "ended before its first message" : how : error.what()));
  } catch (const BadInput& error) {
    end(true);
    throw DeviceError(where + error.what());
  }
}

std::string RemoteWorker::end(bool kill) {
  if (pid_ < 0) return {};
  socket_ = Descriptor();
  int status = 0;
  if (kill) ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return how_it_ended(status);
}

bool RemoteWorker::send(const std::string& bytes) const {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t sent =
        ::send(socket_.number(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    done += static_cast<size_t>(sent);
  }
  return true;
}

void RemoteWorker::run(const OpCall& call, const std::string& where) {
  if (pid_ < 0) start();
  std::string what = "closed its output";
  try {
    if (send(request_of(call))) {
      return take_outputs(read_message(socket_.number(), name_, 0), call, where);
    }
  } catch (const NoMessage& error) {
    if (*error.what() != '\0') what = error.what();
  } catch (const BadInput& error) {
    what = error.what();
  }
  // One that closes its output is about to end.
  siginfo_t ended{};
  for (int i = 0; i < 100 && ended.si_pid == 0; ++i) {
    if (i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ::waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT);
  }
  const std::string how = end(ended.si_pid == 0);
  throw DeviceError(where + (ended.si_pid != 0 && !how.empty() ? how : what));
}

}  // namespace plumb::harness
