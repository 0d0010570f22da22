#include "harness/run/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "harness/io/escape.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// `line` cut to at most `columns` columns, between characters. Characters beyond ASCII count as two
// columns, which is what the widest of them take.
std::string cut(const std::string& line, int columns) {
  int used = 0;
  size_t end = 0;
  while (end < line.size()) {
    size_t next = end + 1;
    while (next < line.size() && (static_cast<unsigned char>(line[next]) & 0xc0) == 0x80) ++next;
    used += next - end > 1 ? 2 : 1;
    if (used > columns) break;
    end = next;
  }
  return line.substr(0, end);
}

constexpr double kSilence = 2;  // seconds after which a rate means something

// "7 s", "3 min 20 s", "2 h 5 min".
std::string duration(double seconds) {
  const auto s = static_cast<int64_t>(seconds + 0.5);
  if (s < 60) return text(s, " s");
  if (s < 3600) return text(s / 60, " min ", s % 60, " s");
  return text(s / 3600, " h ", s % 3600 / 60, " min");
}

}  // namespace

Progress::Progress(std::ostream& out, bool live, int64_t total, int columns,
                   Clock::duration interval)
    : out_(out), live_(live), total_(total), columns_(columns), interval_(interval) {}

// "1.3/18.2 GB", where it is a gigabyte or more.
std::string Progress::amount() const {
  if (bytes_total_ < 1'000'000'000) return {};
  char words[48];
  std::snprintf(words, sizeof words, "%.1f/%.1f GB  ", 1e-9 * static_cast<double>(bytes_done_),
                1e-9 * static_cast<double>(bytes_total_));
  return words;
}

std::string Progress::pace(int64_t done, Clock::time_point now) const {
  const double seconds = std::chrono::duration<double>(now - started_).count();
  if (seconds < kSilence || done < 1) return {};
  const double rate = static_cast<double>(done) / seconds;
  const double share = bytes_done_ > 0
                           ? static_cast<double>(bytes_done_) / static_cast<double>(bytes_total_)
                           : static_cast<double>(done) / static_cast<double>(total_);
  char words[32];
  std::snprintf(words, sizeof words, "%.2g/s", rate);
  return text(words, ", ", duration(seconds / share - seconds), " left  ");
}

void Progress::show(int64_t done, std::string_view current, int64_t failures,
                    Clock::time_point now) {
  if (!live_) return;
  if (visible_ && now - drawn_ < interval_) return;
  const std::string line =
      text('[', done, '/', total_, "]  ", amount(), pace(done, now),
           failures > 0 ? text(failures, " failed  ") : "", terminal_text(current));
  // A character in the last column would make some terminals wrap.
  out_ << "\r" << cut(line, std::max(columns_ - 1, 1)) << "\x1b[K" << std::flush;
  drawn_ = now;
  visible_ = true;
}

void Progress::erase() {
  if (!visible_) return;
  out_ << "\r\x1b[K" << std::flush;
  visible_ = false;
}

int terminal_columns(int descriptor) {
  winsize size{};
  const bool known = ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

}  // namespace plumb::harness
