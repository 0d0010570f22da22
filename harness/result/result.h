// What a run of one checkpoint on one device found. Everything that is printed or written comes
// from here.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "harness/judge/chain_figures.h"
#include "harness/judge/verdict.h"
#include "harness/recording/recording.h"

namespace plumb::harness {

// A known bug, and the largest statistic / limit that it reaches.
struct Margin {
  std::string bug;
  double margin = 0;
  bool passes() const { return margin <= 1; }  // as gates do
};

// The known bug that a failure is: the outputs pass where they are held to the block with the bug.
struct KnownBugFound {
  std::string bug;     // "softcap left out"
  double differ = 0;   // share of the 16-bit elements whose bits are not that block's; NaN: no such
  double ratio = 0;    // the largest statistic / limit against that block
  std::string rounds;  // where that block rounds: "HF eager"; "": as the contract says
};

struct CheckpointResult {
  Status status = Status::pass;
  std::string reason;      // one line: which gate by how much, or why it could not be judged
  std::string block;       // "sdpa"
  std::string checkpoint;  // "model.layers.0.self_attn:sdpa#0"
  std::string recording;   // "llama-a1/decode-f32"
  std::string fixture;     // the recording's folder as given on the command line
  std::string device;      // "cpu"
  std::string dtype;       // "bf16"
  std::string contract;    // "bf16 acc24 fused"
  // What widens limits, each once: contracts of a plugin, and what the recorded one allows inside.
  std::vector<std::string> looser;
  bool refereed = true;           // our own float64 block ran, too (RefereeRule)
  std::vector<std::string> impl;  // "linear/onednn", "sdpa/avx2": each once, in order of first use
  bool fused = false;             // some op ran fused
  int64_t step = 0;
  std::vector<OutputVerdict> outputs;  // one per output tensor, with every statistic and limit
  std::vector<std::string> features;   // what this checkpoint exercises: "window", "gqa"
  std::vector<std::string> blind_to;   // features it has but cannot see
  std::vector<std::string> details;    // lines of a failure text, already in words
  std::string diagnosis;  // of a failure in 16 bits: "rounds like: HF eager (0.02 % differ)"
  std::optional<KnownBugFound> known_bug;  // that the failure is
  std::vector<std::string> not_judged;     // outputs that are optional and were not given
  std::string again;                       // the command that repeats it
  std::string output_sha256;               // over all outputs' bytes in order
  std::string golden_sha256;               // of recording.json
  Determinism determinism = Determinism::not_measured;
  int64_t runs = 0;                            // whose bytes were compared
  std::optional<std::vector<Margin>> margins;  // nothing: not measured (--margins)
  double seconds = 0;                          // of one run of the block
  std::optional<ChainReport> chain;            // where the whole model ran, as the block "model"
};

// "equals the block with a known bug, softcap left out: 0.01 % of bits differ"
std::string words_of(const KnownBugFound& found);

// Which roundings the bits of an output follow ("": of the only one), in words.
void add_diagnosis(CheckpointResult& result, const std::string& output, const std::string& words);

// Of outputs that another program made, before anything was judged.
CheckpointResult external_result(const Recording& recording, const Checkpoint& checkpoint);

// Runs `work`; what it throws becomes the result's status and reason. `where` is the recorded thing
// that was at work, for the reason.
void status_of_exception(CheckpointResult& result, const std::string& where,
                         const std::function<void()>& work);

// Adds to the details that an output was judged from some of its rows, if it was.
void note_sample(const OutputCase& output, CheckpointResult& result);

// First line of the JSON lines and head of every report.
struct RunInfo {
  std::string command;
  std::string version;
  std::string started;  // ISO 8601, UTC; empty where times are left out
  std::vector<std::pair<std::string, std::string>>
      environment;                   // "compiler" -> "GCC 12.2.0", "cpu" -> ...
  std::vector<std::string> devices;  // name: description
  // What was asked for, as far as results depend on it: options that were given, by name, and
  // "selected": how many checkpoints the selection has on each device, all shards together.
  std::vector<std::pair<std::string, std::string>> request = {};
};

}  // namespace plumb::harness
