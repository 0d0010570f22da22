#include "harness/io/log.h"

#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "harness/io/output_place.h"

namespace plumb::harness {
namespace {

constexpr std::string_view kNames[] = {"error", "warning", "info", "debug"};

struct Sink {
  std::mutex mutex;
  LogLevel level = LogLevel::warning;
  std::string name;
  std::optional<Descriptor> file;  // nothing: stderr
  bool lost = false;
};

Sink& sink() {
  static Sink instance;
  return instance;
}

}  // namespace

std::optional<LogLevel> log_level_from_name(std::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == name) return static_cast<LogLevel>(i);
  }
  return std::nullopt;
}

void configure_log(LogLevel level, const std::string& file) {
  Sink& s = sink();
  const std::lock_guard lock(s.mutex);
  s.level = level;
  s.name = file;
  s.file.reset();
  s.lost = false;
  if (file.empty()) return;
  // Workers append to it, too: each line by one call.
  Descriptor opened(::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  require(opened.number() >= 0, "log", "cannot open ", file,
          " for writing: ", std::strerror(errno));
  s.file = std::move(opened);
}

bool logs(LogLevel level) { return level <= sink().level; }

void write_log(LogLevel level, const std::string& message) {
  Sink& s = sink();
  const std::lock_guard lock(s.mutex);
  const std::string line = text(kNames[static_cast<size_t>(level)], ": ", message, '\n');
  int64_t written = 0;
  if (s.file && write_all(*s.file, line, written)) return;
  if (s.file) {
    const int code = errno;
    s.lost = true;
    s.file.reset();
    std::fprintf(stderr, "error: [log] %s: cannot be written: %s; the log continues here\n",
                 s.name.c_str(), std::strerror(code));
  }
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

bool log_file_lost() { return sink().lost; }

}  // namespace plumb::harness
