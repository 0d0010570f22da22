#include "harness/judge/status.h"

#include <algorithm>
#include <array>

namespace plumb::harness {
namespace {

struct StatusRow {
  Status status;
  std::string_view name;
  int exit_code;
  int severity;
};

constexpr std::array<StatusRow, kStatusCount> kTable = {{
    {Status::pass, "pass", 0, 0},
    {Status::fail, "fail", 1, 4},
    {Status::unsupported, "unsupported", 4, 2},
    {Status::blind, "blind", 8, 1},
    {Status::nondeterministic, "nondeterministic", 9, 3},
    {Status::bad_input, "bad_input", 3, 5},
    {Status::device_error, "device_error", 5, 7},
    {Status::timeout, "timeout", 6, 6},
    {Status::internal_error, "internal_error", 7, 8},
}};

const StatusRow& row(Status status) { return kTable[static_cast<size_t>(status)]; }

}  // namespace

std::string_view name_of(Status status) { return row(status).name; }

std::string_view name_of(Determinism determinism) {
  switch (determinism) {
    case Determinism::d0: return "D0";
    case Determinism::d1: return "D1";
    case Determinism::not_measured: break;
  }
  return "not measured";
}

std::optional<Status> status_from_name(std::string_view name) {
  for (const StatusRow& entry : kTable) {
    if (entry.name == name) return entry.status;
  }
  return std::nullopt;
}

int exit_code(Status status) { return row(status).exit_code; }

bool is_failure(Status status) {
  return status != Status::pass && status != Status::unsupported && status != Status::blind;
}

Status worse(Status a, Status b) { return row(a).severity >= row(b).severity ? a : b; }

int run_exit_code(const std::vector<Status>& statuses, bool strict) {
  if (statuses.empty()) return kExitUsage;
  Status all = Status::pass;
  bool proved = false;  // something passed
  for (const Status status : statuses) {
    all = worse(all, status);
    proved = proved || status == Status::pass;
  }
  const bool unproved = all == Status::blind || all == Status::unsupported;
  return unproved && proved && !strict ? 0 : exit_code(all);
}

}  // namespace plumb::harness
