// The table of a recording's tensors.
#pragma once

#include <map>
#include <string>
#include <unordered_map>

#include "harness/io/json.h"
#include "harness/io/safetensors.h"
#include "harness/recording/recording_header.h"

namespace plumb::harness {

// `table`: the field "tensors"; `files`: RecordingHeader::files. Throws BadInput.
std::unordered_map<std::string, TensorInfo> read_tensors(
    JsonValue table, const std::map<std::string, RecordedFile>& files);

// Checks a file against files.<file> and the tensor table: its size, and dtype and shape of every
// tensor that the table has. The file may hold more: several recordings share one.
void check_payload_file(JsonValue root, const RecordingHeader& header, const std::string& file,
                        const SafetensorsFile& payload);

}  // namespace plumb::harness
