// Child processes: messages, ends, and that nothing is left of them.
#include "harness/process/process.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <new>
#include <stdexcept>

#include "harness/io/log.h"
#include "harness/process/serialised_result.h"
#include "kernels/core/error.h"
#include "tests/catch.h"

namespace plumb::harness {
namespace {

using std::chrono::milliseconds;
using Event = Channel::Event;

constexpr milliseconds kLong{30000};

bool no_child_is_left() { return ::waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD; }

std::string end_of(const std::function<void(const Channel&)>& body) {
  Process process(body);
  return process.end(kLong);
}

}  // namespace

TEST_CASE("messages of any size and content arrive in order") {
  const std::string large(5 << 20, 'x'), zeros(3, '\0');
  Process process([](const Channel& channel) {
    std::string message;
    while (channel.receive(message) == Event::message) channel.send(message + "!");
  });
  for (const std::string& sent : {std::string(), zeros, large, std::string("last")}) {
    REQUIRE(process.channel().send(sent));
    std::string message;
    REQUIRE(process.channel().receive(message) == Event::message);
    CHECK((message == sent + "!"));
  }
  CHECK(process.end(kLong).empty());
  CHECK(no_child_is_left());
}

TEST_CASE("an older child can be ended though a younger one has a copy of its channel") {
  const auto wait = [](const Channel& channel) {
    std::string message;
    channel.receive(message);
  };
  Process older(wait);
  const Process younger(wait);
  CHECK(older.end(kLong).empty());
}

TEST_CASE("how a child ended") {
  CHECK(end_of([](const Channel&) {}).empty());
  CHECK(end_of([](const Channel&) { ::_exit(3); }) == "exited with code 3");
  CHECK(end_of([](const Channel&) { ::raise(SIGUSR1); }) ==
        "was killed by signal 10 (User defined signal 1)");
  configure_log(LogLevel::error, "/dev/null");
  CHECK(end_of([](const Channel&) { throw Error("gone"); }) == "exited with code 1");
  configure_log(LogLevel::warning, "");
  CHECK(no_child_is_left());
}

TEST_CASE("a child that ends closes the channel, also in the middle of a message") {
  Process process([](const Channel& channel) {
    channel.send("whole");
    const uint64_t size = 1000;  // of a message that is never sent
    const std::string torn(reinterpret_cast<const char*>(&size), sizeof size);
    for (int descriptor = 3; descriptor < 64; ++descriptor) {
      [[maybe_unused]] const ssize_t n = ::write(descriptor, torn.data(), torn.size());
    }
  });
  std::string message;
  CHECK(process.channel().receive(message) == Event::message);
  CHECK(message == "whole");
  CHECK(process.channel().receive(message) == Event::closed);
}

TEST_CASE("a child that says nothing is late, and killed where it does not go") {
  Process process([](const Channel&) { ::sleep(100); });
  std::string message;
  CHECK(process.channel().receive(message, Channel::Clock::now()) == Event::late);
  CHECK(process.end(milliseconds(1)) == "was killed by signal 9 (Killed)");
  CHECK(no_child_is_left());
}

TEST_CASE("a child dies with its parent") {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // so that the orphan becomes a child of this process
  void* memory = ::mmap(nullptr, sizeof(std::atomic<pid_t>), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto* orphan = new (memory) std::atomic<pid_t>(0);
  {
    Process parent([&](const Channel& up) {
      Process child([&](const Channel& channel) {
        *orphan = ::getpid();
        channel.send("here");
        ::sleep(100);
      });
      std::string message;
      child.channel().receive(message);
      up.send(message);
      ::sleep(100);
    });
    std::string message;
    REQUIRE(parent.channel().receive(message) == Event::message);
  }  // killed
  int status = 0;
  CHECK(::waitpid(*orphan, &status, 0) == *orphan);
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
  ::munmap(memory, sizeof(std::atomic<pid_t>));
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST_CASE("what is thrown in one process is thrown in the other") {
  const auto carried = [](const auto& error) {
    deserialised(serialised([&]() -> std::string { throw error; }));
  };
  CHECK(deserialised(serialised([] { return std::string("fine"); })) == "fine");
  CHECK_THROWS_AS(carried(UsageError("u")), UsageError);
  CHECK_THROWS_AS(carried(BadInput("b")), BadInput);
  CHECK_THROWS_AS(carried(Unsupported("s")), Unsupported);
  CHECK_THROWS_AS(carried(DeviceError("d")), DeviceError);
  CHECK_THROWS_WITH(carried(DeviceError("lost")), "lost");
  CHECK_THROWS_WITH(carried(std::runtime_error("other")), "other");
  CHECK_THROWS_AS(deserialised(""), Error);
}

}  // namespace plumb::harness
