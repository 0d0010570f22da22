// Selection: which recordings and checkpoints a command works on.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "harness/recording/recording.h"

namespace plumb::harness {

// The suite of what no recording has: single ops, on calls made from their rows.
inline constexpr const char* kOpSuite = "ops";

// What a checkpoint computes: what a block gives, or gradients of that.
inline constexpr const char *kForward = "forward", *kBackward = "backward";

struct Selection {
  std::vector<std::string> fixtures;  // recordings or folders of them; empty: the project's own
  std::vector<std::string> blocks;    // exact names; empty: all
  std::vector<std::string> suites;    // names of groups of blocks, besides those
  std::string checkpoint;  // an id, or else a regular expression searched in ids; empty: all
  std::string direction;   // kForward, kBackward; empty: both

  bool wants(std::string_view block) const;
};

// The project's own recordings: PLUMB_FIXTURES, else the source tree this was built from, else
// ../share/plumbline/fixtures from the folder of the executable.
std::filesystem::path default_fixtures();

// The folder (or recording.json) that a recording's name on the command line means: a path, or
// a name as tables print it, "llama-a1/decode-bf16", below default_fixtures(). BadInput that names
// the nearest recording where there is neither.
std::filesystem::path recording_folder(const std::string& named);

// The recording of that name.
Recording open_recording(const std::string& named);

// The folders of all recordings named, sorted within each name. Throws BadInput when there is none.
std::vector<std::filesystem::path> selected_recordings(const Selection& selection);

// Indices of the checkpoints that match. Throws UsageError for a malformed expression.
std::vector<size_t> selected_checkpoints(const Selection& selection, const Recording& recording);

// Throws UsageError that says what there is, and which id is nearest, where nothing was selected.
void require_some(const std::vector<size_t>& selected, const Selection& selection,
                  const Recording& recording);

// Throws UsageError that names the known blocks and suites, the nearest in front, unless all that
// are named are in the catalog, the backward of one that is, or "module".
void require_known_blocks(const Selection& selection);

}  // namespace plumb::harness
