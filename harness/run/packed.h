// Results as bytes for the way from a worker process, and back without a bit of difference.
#pragma once

#include <string>
#include <string_view>

#include "harness/replay/replay.h"

namespace plumb {

std::string packed(Replayed replayed);
// Throws Error when the bytes are not what packed() gave.
Replayed unpacked(std::string_view bytes);

}  // namespace plumb
