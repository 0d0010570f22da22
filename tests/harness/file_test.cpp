#include "harness/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <set>

#include "tests/catch.h"
#include "tests/harness/error_text.h"
#include "tests/harness/temporary_folder.h"

namespace plumb::harness {
namespace {

namespace fs = std::filesystem;

std::string open_error(const fs::path& folder, std::string_view name) {
  return error_text([&] { File::open_beneath(folder, name); });
}

TEST_CASE("a plain file name is one component, at most one folder up") {
  for (const char* name : {"a", "a.b", "..a", "a..", "../a", "../..a", "...", " "}) {
    CAPTURE(name);
    CHECK(is_plain_file_name(name));
  }
  using namespace std::string_view_literals;
  for (const std::string_view name :
       {""sv, "."sv, ".."sv, "../"sv, "../."sv, "../.."sv, "../../a"sv, "/a"sv, "/etc/passwd"sv,
        "a/b"sv, "./a"sv, "a/"sv, "..//a"sv, "a\\b"sv, "a\0b"sv, "a\nb"sv, "a\x1b[31m"sv,
        "a\x7f"sv}) {
    CAPTURE(name);
    CHECK_FALSE(is_plain_file_name(name));
  }
  CHECK(is_plain_file_name(std::string(255, 'x')));
  CHECK_FALSE(is_plain_file_name(std::string(256, 'x')));
  CHECK_FALSE(is_plain_file_name(std::string(65536, 'x')));
}

TEST_CASE("a file beneath a folder or its parent is read") {
  const TemporaryFolder root;
  fs::create_directory(root / "case");
  write_bytes(root / "above", "12345");
  write_bytes(root / "case/inside", "abc");
  const File inside = File::open_beneath(root / "case", "inside");
  CHECK(inside.size() == 3);
  CHECK(inside.read_all(3) == "abc");
  CHECK(File::open_beneath(root / "case", "../above").read_all(100) == "12345");
  CHECK(File::open(root / "above").read_all(5) == "12345");
  CHECK(contains(error_text([&] { inside.read_all(2); }), "has 3 bytes, more than the 2"));
}

TEST_CASE("what is no regular file is refused at once, whoever names it") {
  const TemporaryFolder root;
  fs::create_directory(root / "folder");
  write_bytes(root / "target", "x");
  fs::create_symlink("target", root / "link");
  fs::create_symlink("link", root / "loop-a");
  REQUIRE(::mkfifo((root / "fifo").c_str(), 0600) == 0);
  CHECK(contains(open_error(root.path(), "link"), "is a symbolic link, expected a regular file"));
  CHECK(contains(open_error(root.path(), "folder"), "is a folder, expected a regular file"));
  CHECK(contains(open_error(root.path(), "fifo"), "is a FIFO, expected a regular file"));
  CHECK(contains(open_error("/dev", "null"), "is a device, expected a regular file"));
  CHECK(contains(open_error(root.path(), "missing"), "No such file"));
  CHECK(contains(open_error(root / "target", "x"), "Not a directory"));
  CHECK(contains(open_error(root / "nowhere", "x"), "No such file"));
  CHECK(contains(open_error(root.path(), "../../etc/passwd"), "expected a plain file name"));
  CHECK(contains(error_text([&] { File::open(root / "fifo"); }), "is a FIFO"));
  CHECK(contains(error_text([&] { File::open("/dev/zero"); }), "is a device"));
  CHECK(File::open(root / "link").read_all(1) == "x");  // the user may name a link
}

TEST_CASE("a file that shrinks while it is read is an error with the offset") {
  const TemporaryFolder root;
  write_bytes(root / "x", std::string(100, 'x'));
  const File file = File::open(root / "x");
  REQUIRE(::truncate((root / "x").c_str(), 40) == 0);
  std::array<char, 100> bytes{};
  const std::string error = error_text([&] { file.read(10, bytes.data(), 80); });
  CHECK(contains(error, "ends at byte 40, 50 bytes are missing"));
  CHECK_NOTHROW(file.read(0, bytes.data(), 40));
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

TEST_CASE("an atomic file appears at commit, and not at all without") {
  const TemporaryFolder root;
  write_bytes(root / "x", "old");
  {
    AtomicFile file(root / "x");
    file.write("new");
    CHECK(read_bytes(root / "x") == "old");
  }
  CHECK(read_bytes(root / "x") == "old");
  CHECK(names_in(root.path()) == std::set<std::string>{"x"});
  write_file(root / "x", "new");
  CHECK(read_bytes(root / "x") == "new");
  write_file(root / "y", "");
  CHECK(names_in(root.path()) == std::set<std::string>{"x", "y"});
}

TEST_CASE("an atomic file replaces a link's target, and no device") {
  const TemporaryFolder root;
  write_bytes(root / "x", "old");
  fs::create_symlink("x", root / "link");
  write_file(root / "link", "new");
  CHECK(fs::is_symlink(root / "link"));
  CHECK(read_bytes(root / "x") == "new");
  fs::create_symlink("y", root / "ahead");
  write_file(root / "ahead", "first");
  CHECK(read_bytes(root / "y") == "first");
  // A FIFO of our own represents every device: a test of a broken writer must not replace
  // /dev/null.
  REQUIRE(::mkfifo((root / "fifo").c_str(), 0600) == 0);
  const int reader = ::open((root / "fifo").c_str(), O_RDONLY | O_NONBLOCK);
  write_file(root / "fifo", "through");
  char buffer[16];
  CHECK(::read(reader, buffer, sizeof buffer) == 7);
  ::close(reader);
  CHECK(fs::is_fifo(root / "fifo"));
}

TEST_CASE("an atomic file that cannot be created says why") {
  const TemporaryFolder root;
  const auto error = [&](const fs::path& path) {
    return error_text<UsageError>([&] { write_file(path, "x"); });
  };
  CHECK(contains(error(root / "no/x"), "no/x: cannot be created: No such file or directory"));
  CHECK(contains(error(root.path()), "Is a directory"));
  CHECK(names_in(root.path()).empty());
}

}  // namespace
}  // namespace plumb::harness
