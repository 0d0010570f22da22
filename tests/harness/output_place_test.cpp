// Which files are one and the same when they are written.
#include "harness/io/output_place.h"

#include <sys/stat.h>

#include "tests/catch.h"
#include "tests/harness/error_text.h"
#include "tests/harness/temporary_folder.h"

namespace plumb::harness {
namespace {

namespace fs = std::filesystem;

std::string error_of(const fs::path& json, const fs::path& junit) {
  return error_text<UsageError>([&] {
    require_different({{"--json", json.string()}, {"--junit", junit.string()}});
  });
}

TEST_CASE("one file under two names is refused, whether it exists or not") {
  const TemporaryFolder root;
  fs::create_directory(root / "deep");
  fs::create_directory_symlink("deep", root / "way");
  fs::create_symlink("deep/x", root / "link");
  for (const bool exists : {false, true}) {
    CAPTURE(exists);
    if (exists) write_bytes(root / "deep/x", "old");
    for (const char* other : {"deep/x", "deep/../deep/./x", "way/x", "link"}) {
      CAPTURE(other);
      const std::string error = error_of(root / "deep/x", root / other);
      CHECK(contains(error, "[--junit] " + (root / other).string() + " is the file that --json " +
                                (root / "deep/x").string() + " writes"));
    }
  }
  CHECK(error_of(root / "deep/x", root / "deep/y") == "nothing was thrown");
  CHECK(error_of(root / "missing/x", root / "missing/y") == "nothing was thrown");
}

TEST_CASE("a relative path is of the working folder") {
  const std::string here = fs::current_path() / "no such file";
  CHECK(contains(error_of("no such file", "./no such file"), "is the file that"));
  CHECK(contains(error_of("no such file", here), "is the file that"));
}

TEST_CASE("what is written in place may be named twice") {
  const TemporaryFolder root;
  REQUIRE(::mkfifo((root / "fifo").c_str(), 0600) == 0);
  CHECK(error_of(root / "fifo", root / "fifo") == "nothing was thrown");
  CHECK(error_of("/dev/null", "/dev/null") == "nothing was thrown");
}

}  // namespace
}  // namespace plumb::harness
