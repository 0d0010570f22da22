#include "harness/replay/external_outputs.h"

#include <algorithm>

#include "harness/execution/converted.h"
#include "harness/io/nearest_name.h"
#include "harness/io/printable.h"
#include "harness/replay/recorded.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// y in the dtype of the recorded output; throws BadInput when that is neither a rounding of floats
// nor the same whole numbers.
Tensor in_recorded_dtype(const Tensor& y, DType recorded, const std::string& where, bool& rounded) {
  if (y.dtype() == recorded) return y;
  if (!is_floating(y.dtype()) && !is_floating(recorded)) {
    return converted_whole(y, recorded, where);
  }
  const bool wider =
      is_floating(y.dtype()) && is_floating(recorded) && size_of(y.dtype()) > size_of(recorded);
  if (!wider) {
    throw BadInput(text(where, " is ", name_of(y.dtype()), ", the recording has ",
                        name_of(recorded),
                        "; give that dtype, or f32 or f64 numbers to be rounded to it"));
  }
  rounded = true;
  return converted(y, recorded);
}

// A state that a call leaves behind, besides its result: a program may keep it elsewhere. Of a call
// that no block describes, whatever else it returns.
bool is_optional(const Checkpoint& checkpoint, const std::string& output) {
  if (judged_as_recorded(checkpoint)) return true;
  const auto is_state = [](const std::string& name) { return name.ends_with("_after"); };
  return is_state(output) && std::any_of(checkpoint.outputs.begin(), checkpoint.outputs.end(),
                                         [&](const auto& it) { return !is_state(it.first); });
}

}  // namespace

OutputsOfCheckpoints read_outputs(const SafetensorsFile& file, const Recording& recording,
                                  const std::vector<size_t>& selected) {
  OutputsOfCheckpoints out;
  for (const auto& [name, entry] : file.entries()) {
    const size_t slash = name.rfind('/');
    const bool bare = slash == std::string::npos && selected.size() == 1;
    const std::string id = bare ? recording.checkpoints()[selected.front()].id
                                : name.substr(0, slash == std::string::npos ? 0 : slash);
    const bool known = std::any_of(selected.begin(), selected.end(),
                                   [&](size_t i) { return recording.checkpoints()[i].id == id; });
    if (!known) {
      throw BadInput(text(file.file().name(), ": tensor ", printable(name),
                          " names no selected checkpoint of ", recording.folder().string(),
                          "; expected \"<checkpoint id>/<output name>\""));
    }
    out[id][bare ? name : name.substr(slash + 1)] = file.read(name);
  }
  if (out.empty()) throw BadInput(text(file.file().name(), ": holds no outputs"));
  return out;
}

Outputs given_outputs(const Recording& recording, const Checkpoint& checkpoint,
                      const Outputs& outputs, CheckpointResult& result) {
  bool rounded = false;
  Outputs given;
  if (outputs.empty()) throw BadInput(text(checkpoint.id, ": no output is given"));
  for (const auto& [name, y] : outputs) {
    if (checkpoint.outputs.count(name)) continue;
    std::vector<std::string> known;
    for (const auto& [one, ref] : checkpoint.outputs) known.push_back(one);
    throw BadInput(text(checkpoint.id, ": has no output \"", name, '"', did_you_mean(name, known)));
  }
  for (const auto& [name, ref] : checkpoint.outputs) {
    const auto found = outputs.find(name);
    if (found != outputs.end()) {
      given[name] = in_recorded_dtype(found->second, recording.tensor_info(ref.tensor).dtype,
                                      text(checkpoint.id, ": output \"", name, '"'), rounded);
    } else if (is_optional(checkpoint, name)) {
      result.not_judged.push_back(name);
      result.details.push_back(text("output \"", name, "\" was not given and is not judged"));
    } else {
      throw BadInput(text(checkpoint.id, ": output \"", name, "\" is missing"));
    }
  }
  if (rounded) result.details.push_back("wider outputs were rounded to " + result.dtype);
  return given;
}

}  // namespace plumb::harness
