// An output that another program measures: what it says of the output, and the sums that it made.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "harness/io/json.h"
#include "harness/judge/output_limits.h"

namespace plumb::harness {

// {"dtype": "bf16", "axes": [..], "shape": [..], "n": usable elements, "valid": elements, "rows":
//  with a usable element, "constant": all usable ones are equal, "groups": {"token": [that count,
//  of one size]}, "spread": as a recording has it, "truncated": the same or null, "operations": of
//  the trace, "ways": [[name, bits or null]], of 16 bits}
KnownOutput described_output(JsonValue description);

// What is said of every output, one field after the other. This list is all that there is.
struct RecordField {
  std::string name;
  size_t count = 1;
};
std::vector<RecordField> record_fields(const KnownOutput& known);
size_t record_size(const KnownOutput& known);
// Such a record; UsageError where it has another size.
MeasuredOutput read_record(const KnownOutput& known, std::span<const double> values);

// What is said once, in this order: values that are alike; of the families of gains size, alike,
// level and rows; of each way how far its roundings move an element of the first; the records of
// the reference and of each way's model.
std::vector<RecordField> limit_fields(const KnownOutput& known);
void read_limits(OutputLimits& limits, std::span<const double> values);

}  // namespace plumb::harness
