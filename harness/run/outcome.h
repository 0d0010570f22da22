// What a whole run found: counts, one row per block, device and dtype, what nothing could see, and
// the exit code. The console, the reports and the exit code share it, so that they cannot disagree.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/result/result.h"
#include "harness/run/failure_groups.h"

namespace plumb::harness {

// How many checkpoints have which status.
struct Counts {
  std::array<int64_t, kStatusCount> of{};

  void add(Status status, int64_t times = 1) { of[static_cast<size_t>(status)] += times; }
  int64_t operator[](Status status) const { return of[static_cast<size_t>(status)]; }
  int64_t total() const;
};

// The gate of a checkpoint that came closest to its limit, or went farthest beyond it.
struct WorstGate {
  double ratio = 0;
  std::string gate;    // "token x head"
  std::string output;  // "out"
  std::string checkpoint;
  std::string recording;
};
std::optional<WorstGate> worst_gate(
    const CheckpointResult& result);  // nothing: no gate was computed

struct OverviewRow {
  std::string block, device, dtype;
  Counts counts;
  std::optional<WorstGate> worst;
};

// A feature of a block that at least one selected checkpoint has and is blind to. Features belong
// to a block: an eps seen by a norm says nothing about another block's.
struct BlindFeature {
  std::string block, feature;  // feature "": the whole block, all of whose checkpoints are blind
  int64_t blind = 0;           // checkpoints that have it and cannot see it
  int64_t seen = 0;            // checkpoints that were judged and see it
  int64_t narrow = 0;  // of the blind ones, those whose dtype is to blame: 16 bits hardly ever
                       // resolve eps, or hold denormals that matter
  bool everywhere() const { return seen == 0; }
  // Whether a run that nothing else is wrong with ends as blind for it.
  bool decides() const { return everywhere() && narrow < blind; }
};

// A known bug of a block (--margins), over all checkpoints that have room for it.
struct KnownBug {
  std::string block;
  int64_t passes = 0, caught = 0;  // checkpoints
  Margin nearest;                  // its smallest, which is that of this checkpoint:
  std::string recording, checkpoint, device, dtype;
};
// Those nearest to passing first.
std::vector<KnownBug> known_bugs_of(const std::vector<const CheckpointResult*>& results);

// Checkpoints of one block on one device that are unsupported (or blind) for one reason.
struct ReasonGroup {
  Status status = Status::unsupported;
  std::string block, device, dtype, reason;
  int64_t checkpoints = 0;
};

// What was asked for by name on the command line; empty: not restricted.
struct Request {
  bool strict = false;
  std::vector<std::string> blocks, devices, dtypes;
  int64_t checkpoints = 0;  // on all devices together
  int64_t not_given = 0;    // of them, whose outputs another program did not give
  bool partial = false;     // which is meant
  bool shard = false;       // of several: what the whole selection lacks is for who merges them
  int signal = 0;  // that ended the run before all were judged (harness/process/interrupt.h)
};

struct Outcome {
  Counts counts;
  std::vector<OverviewRow> rows;        // in order of first appearance, a block's rows together
  std::vector<BlindFeature> blind;      // those blind everywhere first
  std::vector<KnownBug> bugs;           // those nearest to passing first
  std::vector<FailureGroup> failures;   // one per cause, in order of first appearance
  std::vector<ReasonGroup> not_judged;  // unsupported, then blind; in order of first appearance
  std::vector<ReasonGroup> suspects;    // references not believed, by block, device and dtype
  std::vector<std::string>
      missing;              // "block sdpa": asked for, and unsupported wherever it was tried
  std::string interrupted;  // "SIGINT": what ended the run before all was judged
  std::vector<std::string> looser;  // contracts that widened limits, each once
  std::vector<std::string> lost;    // reports that are incomplete, and why
  int exit_code = kExitUsage;
  std::string verdict;  // the exit code in words, one line
  double seconds = 0;   // of the run; for the caller to set
};

// The exit code is that of the worst status (harness/judge/status.h), where blind and unsupported
// count only
//   under `strict`;
//   when the run has nothing better;
//   unsupported (4): when all checkpoints of a block, device or dtype named in `request` are
//   unsupported; blind (8): when a feature of a block is seen by no selected checkpoint although
//   some have it, and not only because 16 bits do not resolve it.
// In one of several shards neither counts but under `strict`: others may have seen what it has not.
// Where outputs of selected checkpoints were not given, and that is not meant, a run that is
// otherwise 0 or 8 is incomplete (4): a pass that judged a part is none. No results: 2, nothing was
// selected; 0 in a shard, which may be empty. After a signal: 128 + its number. `times`: how many
// checkpoints each result represents; empty: one.
Outcome outcome_of(const std::vector<CheckpointResult>& results, const Request& request,
                   const std::vector<int64_t>& times = {});

// A report is incomplete for this reason: a run that ended well does not, its exit code is 2.
void note_lost(Outcome& outcome, const std::string& reason);

}  // namespace plumb::harness
