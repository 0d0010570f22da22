// What a recording says before its checkpoints: where it comes from, its contracts, files and
// tensors.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "harness/io/json.h"
#include "harness/recording/recording.h"

namespace plumb::harness {

struct RecordedFile {
  JsonValue field;  // for errors
  std::string path;
  int64_t bytes = 0;
  bool of_model = false;  // is in RecordingHeader::model_folder, not next to recording.json
};

// The key of a file of the model's own folder in RecordingHeader::files begins with it.
inline constexpr std::string_view kModelFile = "model:";

struct RecordingHeader {
  int64_t version = 0;
  std::string name;
  DType dtype = DType::f32;
  std::string architecture;
  std::string model_type;
  std::string mode;
  std::map<std::string, Contract> contracts;
  std::map<std::string, std::vector<std::string>> inside;  // of those that allow something inside
  std::map<std::string, std::shared_ptr<const Operations>> traces;
  // "tensors", "weights" where there are any, and "model:<name>" of weights by reference.
  std::map<std::string, RecordedFile> files;
  std::string model_folder;  // where that was when it was recorded
  std::unordered_map<std::string, TensorInfo> tensors;
};

// Reads and checks everything but the checkpoints; throws BadInput.
RecordingHeader read_recording_header(JsonValue root);

}  // namespace plumb::harness
