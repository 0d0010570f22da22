// What a device is to do next.
#pragma once

#include "harness/replay/replay.h"

namespace plumb::harness {

// Its parts are loaded before a worker is made and there as long as it is.
struct Job {
  const Recording* recording;
  const Checkpoint* checkpoint;  // null: the recording's chain
  const ReplayOptions* options;
};

}  // namespace plumb::harness
