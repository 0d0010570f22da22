// Selection: which recordings and checkpoints a command works on.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "harness/recording.h"

namespace plumb {

struct Selection {
  std::vector<std::string> fixtures;  // recordings or folders of them; empty: the project's own
  std::vector<std::string> blocks;    // exact names; empty: all
  std::vector<std::string> suites;    // names of groups of blocks, besides those
  std::string checkpoint;  // an id, or else a regular expression searched in ids; empty: all

  bool wants(std::string_view block) const;
};

// The project's own recordings: PLUMB_FIXTURES, else the source tree this was built from, else
// share/plumbline/fixtures beside the executable.
std::filesystem::path default_fixtures();

// The folders of all recordings named, sorted within each name. Throws BadInput when there is none.
std::vector<std::filesystem::path> selected_recordings(const Selection& selection);

// Indices of the checkpoints that match. Throws UsageError for a malformed expression.
std::vector<size_t> selected_checkpoints(const Selection& selection, const Recording& recording);

// Throws UsageError that names the known blocks and suites unless all that are named are in the
// catalog, or "module".
void require_known_blocks(const Selection& selection);

}  // namespace plumb
