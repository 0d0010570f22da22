// Results as JSON: what results files say of a checkpoint, and what a worker process sends.
#pragma once

#include <string>
#include <string_view>

#include "harness/replay/replay.h"
#include "harness/trace/explained_output.h"

namespace plumb::harness {

// A line of a results file, without a line feed.
std::string checkpoint_json(const CheckpointResult& result);

// An output that another program measured: {"verdict", "element_limit", "bits", "known_bug",
// "bug_words": that in words}.
std::string explained_json(const ExplainedOutput& output);

// For the way from a worker process and a journal: back without a bit of difference.
std::string packed(const Replayed& replayed);
// Throws Error when the bytes are not what packed() gave.
Replayed unpacked(std::string_view bytes);

}  // namespace plumb::harness
