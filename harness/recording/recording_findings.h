// All that is wrong with a recording, for who has made it or was given it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace plumb::harness {

// Reads all of it: every field, every hash, and what is stated of numbers against the numbers. A
// text for each finding that names the file, the field and both values; none: it is valid.
// Checkpoints, files and tensors are looked at each by itself, what is stated of numbers only where
// all of these are sound.
std::vector<std::string> recording_findings(const std::filesystem::path& folder);

}  // namespace plumb::harness
