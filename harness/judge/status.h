// The status of a checkpoint and the exit code of a run.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace plumb::harness {

enum class Status : uint8_t {
  pass,
  fail,
  unsupported,
  blind,
  nondeterministic,
  bad_input,
  device_error,
  timeout,
  internal_error,
};
inline constexpr int kStatusCount = 9;
inline constexpr int kExitUsage = 2;

std::string_view name_of(Status status);
std::optional<Status> status_from_name(std::string_view name);
int exit_code(Status status);  // 0 1 4 8 9 3 5 6 7 in the order of the enum
// The worse of two: internal_error > device_error > timeout > bad_input > fail > nondeterministic >
// unsupported > blind > pass.
Status worse(Status a, Status b);

// Whether it is reported in full: all but pass, unsupported and blind.
bool is_failure(Status status);

// Whether runs on the same inputs gave the same bytes.
enum class Determinism : uint8_t { not_measured, d0, d1 };
std::string_view name_of(Determinism determinism);  // "not measured", "D0": they did, "D1"

// The exit code of a run: that of its worst status. Blind and unsupported count only when `strict`,
// or when nothing in the run was better. No status at all is a usage error (2): nothing was run.
int run_exit_code(const std::vector<Status>& statuses, bool strict);

}  // namespace plumb::harness
