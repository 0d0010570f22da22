// serve.py and numpy_ops.py, which python: devices run: this program needs no file of theirs.
#pragma once

#include <string_view>

namespace plumb::harness {

extern const std::string_view kServeText, kNumpyOpsText;

}  // namespace plumb::harness
