// What a recording holds of an output besides the reference: kernels that round elsewhere, choices
// that may fall either way, and planted bugs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "harness/recording/recording_header.h"

namespace plumb::harness {

// `output` is the output's own entry in the table. All throw BadInput naming the field.
std::vector<MemberRef> read_members(JsonValue members, const TensorInfo& output,
                                    const RecordingHeader& header);
// The key of a bool tensor of the output's shape, which is of discrete values, or of floats.
std::string read_mask(JsonValue field, const TensorInfo& output, bool discrete,
                      const RecordingHeader& header);
LegalRef read_legal(JsonValue field, const TensorInfo& output, const RecordingHeader& header);
std::vector<PlantedBug> read_bugs(JsonValue bugs, const std::map<std::string, OutputRef>& outputs,
                                  const RecordingHeader& header);

}  // namespace plumb::harness
