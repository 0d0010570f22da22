// What lines of results amount to that were put together from those of several runs.
#pragma once

#include <filesystem>

#include "harness/run/outcome.h"

namespace plumb::harness {

// The outcome of the one run that the file's "run" line says, first, and of all its "checkpoint"
// lines (harness/results.schema.json), without a time; another summary is passed over. Throws
// BadInput naming line and field.
Outcome summarised(const std::filesystem::path& results);

}  // namespace plumb::harness
