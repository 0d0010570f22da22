#include "harness/io/line_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <thread>

#include "tests/catch.h"
#include "tests/harness/error_text.h"
#include "tests/harness/file_size_limit.h"
#include "tests/harness/temporary_folder.h"

namespace plumb::harness {
namespace {

namespace fs = std::filesystem;

std::string error_of(const fs::path& path) {
  return error_text<UsageError>([&] { LineFile file(path); });
}

TEST_CASE("an exception leaves the partial file, and the next run replaces it") {
  const TemporaryFolder root;
  std::optional<LineFile> file(std::in_place, root / "x");
  file->write("a long first line");
  file.reset();
  CHECK(read_bytes(root / "x.partial") == "a long first line\n");
  CHECK_FALSE(fs::exists(root / "x"));
  LineFile next(root / "x");
  next.write("b");
  CHECK(read_bytes(root / "x.partial") == "b\n");
  next.commit();
  next.commit();
  CHECK(read_bytes(root / "x") == "b\n");
}

TEST_CASE("a file without a line leaves nothing") {
  const TemporaryFolder root;
  { const LineFile file(root / "x"); }
  CHECK(fs::is_empty(root.path()));
}

TEST_CASE("a path that cannot be written is a clear error") {
  const TemporaryFolder root;
  CHECK(contains(error_of(root / "missing/x"), "missing/x: cannot be created: No such file"));
  CHECK(contains(error_of(root.path()), ": cannot be written: Is a directory"));
  CHECK(contains(error_of(""), "is not the name of a file"));
  CHECK(contains(error_of(root.path().string() + "/"), "is not the name of a file"));
  fs::create_symlink("circle", root / "circle");
  CHECK(contains(error_of(root / "circle"), "circle of links"));
  CHECK(contains(error_of(std::string(5000, 'x')), "File name too long"));
  // Nothing is written through a link that someone left in the partial file's place.
  fs::create_symlink(root / "victim", root / "y.partial");
  CHECK(contains(error_of(root / "y"), "cannot be created: Too many levels of symbolic links"));
  CHECK_FALSE(fs::exists(root / "victim"));
}

TEST_CASE("two runs do not mix their lines") {
  const TemporaryFolder root;
  LineFile file(root / "x");
  file.write("mine");
  CHECK(contains(error_of(root / "x"), "another run is writing"));
  file.commit();
  CHECK(read_bytes(root / "x") == "mine\n");
}

TEST_CASE("a link is followed, not replaced") {
  const TemporaryFolder root;
  fs::create_directory(root / "deep");
  for (const char* older : {"", "older"}) {
    if (*older) write_bytes(root / "deep/target", older);
    fs::remove(root / "link");
    fs::create_symlink(fs::path("deep/target"), root / "link");
    LineFile file(root / "link");
    file.write("x");
    file.commit();
    CHECK(fs::is_symlink(root / "link"));
    CHECK(read_bytes(root / "deep/target") == "x\n");
  }
}

// SIGALRM to the calling thread again and again, while this lives; it interrupts what waits.
class Interruptions {
 public:
  Interruptions() {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    ::sigaction(SIGALRM, &action, &old_);
    const itimerval often{{0, 2000}, {0, 2000}};
    ::setitimer(ITIMER_REAL, &often, nullptr);
  }
  ~Interruptions() {
    const itimerval never{};
    ::setitimer(ITIMER_REAL, &never, nullptr);
    ::sigaction(SIGALRM, &old_, nullptr);
  }

 private:
  struct sigaction old_ {};
};

TEST_CASE("a write that a signal interrupts continues where it stopped") {
  const TemporaryFolder root;
  REQUIRE(::mkfifo((root / "pipe").c_str(), 0600) == 0);
  std::string line(1 << 20, ' ');  // more than a pipe holds, so that the write waits for the reader
  for (size_t i = 0; i < line.size(); ++i) line[i] = static_cast<char>('a' + i * i % 23);
  std::string received;
  std::thread reader([&] {
    sigset_t alarm;
    ::sigemptyset(&alarm);
    ::sigaddset(&alarm, SIGALRM);
    ::pthread_sigmask(SIG_BLOCK, &alarm, nullptr);
    const int pipe = ::open((root / "pipe").c_str(), O_RDONLY);
    char buffer[40000];
    for (ssize_t n = 1; n > 0;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      n = ::read(pipe, buffer, sizeof(buffer));
      if (n > 0) received.append(buffer, static_cast<size_t>(n));
    }
    ::close(pipe);
  });
  {
    LineFile file(root / "pipe");
    const Interruptions interruptions;
    file.write(line);
    file.commit();
  }
  reader.join();
  CHECK((received == line + '\n'));
}

TEST_CASE("a device is written in place") {
  const TemporaryFolder root;
  REQUIRE(::mkfifo((root / "fifo").c_str(), 0600) == 0);
  const int reader = ::open((root / "fifo").c_str(), O_RDONLY | O_NONBLOCK);
  fs::create_symlink("fifo", root / "link");
  LineFile(root / "link").commit();
  CHECK(fs::is_symlink(root / "link"));
  int pipe[2];
  REQUIRE(::pipe(pipe) == 0);  // it has no name: what /dev/stdout links to in a pipeline
  fs::create_symlink("/proc/self/fd/" + std::to_string(pipe[1]), root / "pipe");
  LineFile(root / "pipe").write("through");
  char buffer[16];
  CHECK(::read(pipe[0], buffer, sizeof(buffer)) == 8);
  ::close(pipe[0]);
  ::close(pipe[1]);
  LineFile file(root / "fifo");
  file.write("x");
  file.commit();
  CHECK(fs::is_fifo(root / "fifo"));
  ::close(reader);
  // Root, who could replace the real one, gets a node of its own.
  const bool own = ::mknod((root / "full").c_str(), S_IFCHR | 0600, makedev(1, 7)) == 0;
  const fs::path device = own ? root / "full" : fs::path("/dev/full");
  if (own && ::access(device.c_str(), W_OK) != 0) return;  // a file system without devices
  std::optional<LineFile> full;
  const std::string error = error_text<UsageError>([&] {
    full.emplace(device);
    full->write("x");
  });
  CHECK((contains(error, "full: cannot be written: No space left on device (after 0 bytes)") ||
         contains(error, "Permission denied")));
}

TEST_CASE("a disk that fills up during a run leaves the old report and nothing else") {
  const TemporaryFolder root;
  write_bytes(root / "x", "the old text");
  for (rlim_t room = 0; room < 40; room += 7) {
    CAPTURE(room);
    const std::string error = error_under_limit(room, [&] {
      LineFile file(root / "x");
      for (int i = 0; i < 4; ++i) file.write("nine byte");
    });
    CHECK(error.starts_with("[write] "));  // of a UsageError: another would say so first
    CHECK(contains(error, "/x: cannot be written: File too large (after " + std::to_string(room) +
                              " bytes); what was there before is unchanged"));
    CHECK(read_bytes(root / "x") == "the old text");
    CHECK(std::distance(fs::directory_iterator(root.path()), {}) == 1);
  }
}

}  // namespace
}  // namespace plumb::harness
