// The one log sink: what a run does, for people who look for the reason of something. Results never
// go here, and libraries below the harness never print.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kernels/error.h"

namespace plumb {

enum class LogLevel { error, warning, info, debug };
std::optional<LogLevel> log_level_from_name(std::string_view name);

// Messages up to `level` go to `file`, or to stderr when it is empty. Throws Error when the file
// cannot be opened. At the start: warnings to stderr.
void configure_log(LogLevel level, const std::string& file);
bool logs(LogLevel level);
void write_log(LogLevel level, const std::string& message);

template <class... Parts>
void log(LogLevel level, const Parts&... parts) {
  if (logs(level)) write_log(level, text(parts...));
}

}  // namespace plumb
