// Where the files are that a recording takes its weights from without holding them.
#pragma once

#include <string>
#include <string_view>

#include "harness/io/file.h"
#include "harness/io/json.h"

namespace plumb::harness {

// The file of that name in the folder that the environment variable PLUMB_WEIGHTS names
// (`--weights`), else in the recorded one, which is the user's own: links are followed. BadInput
// that names `field`, the folder, and what to do.
File open_model_file(const std::string& recorded_folder, std::string_view name, JsonValue field);

}  // namespace plumb::harness
