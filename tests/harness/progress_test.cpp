#include "harness/run/progress.h"

#include <sstream>

#include "tests/catch.h"
#include "tests/harness/sample_results.h"

namespace plumb::harness {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

TEST_CASE("nothing is written where there is no terminal") {
  std::ostringstream out;
  {
    Progress progress(out, false, 10, 80, milliseconds(0));
    progress.show(1, "a", 0);
    progress.erase();
  }
  CHECK(out.str().empty());
}

TEST_CASE("the line is redrawn in place and erased") {
  std::ostringstream out;
  Progress progress(out, true, 214, 80, milliseconds(0));
  progress.show(12, "model.layers.0:sdpa#0", 0);
  progress.show(13, "b", 2);
  CHECK(out.str() == "\r[12/214]  model.layers.0:sdpa#0\x1b[K\r[13/214]  2 failed  b\x1b[K");
  out.str("");
  progress.erase();
  progress.erase();
  CHECK(out.str() == "\r\x1b[K");
}

TEST_CASE("redrawing is limited, but not after an erasure") {
  std::ostringstream out;
  Progress progress(out, true, 3, 80, hours(1));
  progress.show(0, "a", 0);
  progress.show(1, "b", 0);
  CHECK(out.str() == "\r[0/3]  a\x1b[K");
  progress.erase();
  out.str("");
  progress.show(2, "c", 0);
  CHECK(out.str() == "\r[2/3]  c\x1b[K");
}

TEST_CASE("after two seconds it says how fast, and how long still") {
  std::ostringstream out;
  Progress progress(out, true, 10000, 80, milliseconds(0));
  const auto after = [&](int seconds, int64_t done) {
    out.str("");
    progress.show(done, "a", 0, Progress::Clock::now() + std::chrono::seconds(seconds));
    return out.str();
  };
  CHECK(after(1, 50) == "\r[50/10000]  a\x1b[K");
  CHECK(after(10, 0) == "\r[0/10000]  a\x1b[K");
  CHECK(after(100, 9800) == "\r[9800/10000]  98/s, 2 s left  a\x1b[K");
  CHECK(after(100, 5000) == "\r[5000/10000]  50/s, 1 min 40 s left  a\x1b[K");
  CHECK(after(100, 100) == "\r[100/10000]  1/s, 2 h 45 min left  a\x1b[K");
}

TEST_CASE("the time left of large recordings is reckoned by their bytes") {
  std::ostringstream out;
  Progress progress(out, true, 100, 80, milliseconds(0));
  progress.bytes(4'000'000'000, 16'000'000'000);
  progress.show(90, "a", 0, Progress::Clock::now() + std::chrono::seconds(100));
  CHECK(out.str() == "\r[90/100]  4.0/16.0 GB  0.9/s, 5 min 0 s left  a\x1b[K");
}

TEST_CASE("it is erased at the end") {
  std::ostringstream out;
  { Progress(out, true, 1, 80, milliseconds(0)).show(0, "a", 0); }
  CHECK(out.str() == "\r[0/1]  a\x1b[K\r\x1b[K");
}

TEST_CASE("the line never wraps and never steers the terminal") {
  std::ostringstream out;
  Progress progress(out, true, 1, 12, milliseconds(0));
  progress.show(0, "\xe2\x86\x92\xe2\x86\x92\xe2\x86\x92 abcdef", 0);
  CHECK(out.str() == "\r[0/1]  \xe2\x86\x92\xe2\x86\x92\x1b[K");  // 7 + 2 * 2 of 11 columns
  out.str("");
  progress.show(0, "\x1b[2J", 0);
  CHECK(out.str() == "\r[0/1]  \\x1b\x1b[K");
}

}  // namespace
}  // namespace plumb::harness
