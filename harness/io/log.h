// The one log sink: what a run does, for people who look for the reason of something. Results never
// go here, and libraries below the harness never print.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kernels/core/error.h"

namespace plumb::harness {

enum class LogLevel { error, warning, info, debug };
std::optional<LogLevel> log_level_from_name(std::string_view name);

// Messages up to `level` are appended to `file`, or go to stderr when it is empty. Throws
// UsageError when the file cannot be opened. At the start: warnings to stderr.
void configure_log(LogLevel level, const std::string& file);
bool logs(LogLevel level);
// A file that cannot be written any more is left: this message and those that follow go to stderr,
// after one that says why.
void write_log(LogLevel level, const std::string& message);

// Whether the file was left.
bool log_file_lost();

template <class... Parts>
void log(LogLevel level, const Parts&... parts) {
  if (logs(level)) write_log(level, text(parts...));
}

}  // namespace plumb::harness
