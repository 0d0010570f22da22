// A checkpoint's JSON, checked against the recording's contracts and tensors.
#pragma once

#include <string>
#include <vector>

#include "harness/recording/recording_header.h"

namespace plumb::harness {

// Throws BadInput naming the field. With `findings` that of each bad checkpoint goes there instead.
std::vector<Checkpoint> read_checkpoints(JsonValue checkpoints, const RecordingHeader& header,
                                         std::vector<std::string>* findings = nullptr);

// Numbers, strings, bools, null, number lists and objects of those; the strings "inf", "-inf" and
// "nan" become numbers. `where` is Params::where().
blocks::Params::Value read_param(JsonValue value, const std::string& where);
blocks::Params read_params(JsonValue value, const std::string& where);

}  // namespace plumb::harness
