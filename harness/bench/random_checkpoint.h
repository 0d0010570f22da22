// A model folder with random weights, for measurements without a download.
#pragma once

#include <filesystem>
#include <string>

#include "kernels/core/dtype.h"

namespace plumb::harness {

// A checkpoint folder in the system's folder for temporary files (TMPDIR), gone with this object:
// the configuration, and weights of random numbers, the same for the same configuration. A matrix
// about halves the size of what it multiplies; norm weights are near 1, or 0 where the model adds
// the 1.
class RandomCheckpoint {
 public:
  // `config`: JSON; the weights are those that it implies. Throws Error where the disk is full.
  RandomCheckpoint(const std::string& config, DType dtype);
  ~RandomCheckpoint() { remove(); }
  RandomCheckpoint(const RandomCheckpoint&) = delete;
  RandomCheckpoint& operator=(const RandomCheckpoint&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  // The folder goes now. A ModelFolder that is open keeps what it has mapped, and a run that is
  // killed leaves nothing behind.
  void remove();

 private:
  std::filesystem::path folder_;
};

}  // namespace plumb::harness
