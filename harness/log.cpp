#include "harness/log.h"

#include <cstdio>
#include <memory>
#include <mutex>

namespace plumb {
namespace {

constexpr std::string_view kNames[] = {"error", "warning", "info", "debug"};

struct Sink {
  std::mutex mutex;
  LogLevel level = LogLevel::warning;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{nullptr, std::fclose};
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
  s.file.reset();
  if (file.empty()) return;
  s.file.reset(std::fopen(file.c_str(), "a"));
  require(s.file != nullptr, "log", "cannot open ", file, " for writing");
}

bool logs(LogLevel level) { return level <= sink().level; }

void write_log(LogLevel level, const std::string& message) {
  Sink& s = sink();
  const std::lock_guard lock(s.mutex);
  std::FILE* out = s.file ? s.file.get() : stderr;
  std::fprintf(out, "%s: %s\n", kNames[static_cast<size_t>(level)].data(), message.c_str());
  std::fflush(out);
}

}  // namespace plumb
