#include "harness/recording/weights_folder.h"

#include <cstdlib>
#include <filesystem>

#include "kernels/core/error.h"

namespace plumb::harness {

File open_model_file(const std::string& recorded_folder, std::string_view name, JsonValue field) {
  const char* moved = std::getenv("PLUMB_WEIGHTS");
  const std::filesystem::path folder = moved != nullptr && *moved != '\0' ? moved : recorded_folder;
  try {
    return File::open(folder / name);
  } catch (const BadInput& error) {
    field.fail("the model's weights are not copied into this recording, and ", error.what(),
               ": name the folder that holds them now with --weights FOLDER, or in PLUMB_WEIGHTS");
  }
}

}  // namespace plumb::harness
