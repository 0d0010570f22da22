#include "harness/recording/recording_alternatives.h"

#include <algorithm>

#include "harness/io/printable.h"
#include "harness/recording/recording_fields.h"

namespace plumb::harness {
namespace {

constexpr int64_t kMostPositions = 64;  // of a bug

const TensorInfo& resolve(JsonValue key, const RecordingHeader& header) {
  const auto found = header.tensors.find(std::string(key.string()));
  if (found == header.tensors.end()) {
    key.fail("is ", printable(key.string()), ", which the table of tensors does not have");
  }
  return found->second;
}

std::string read_like(JsonValue key, DType dtype, const Shape& shape,
                      const RecordingHeader& header) {
  const TensorInfo& info = resolve(key, header);
  if (info.dtype != dtype || !(info.shape == shape)) {
    key.fail("is ", key.string(), ", ", name_of(info.dtype), ' ', info.shape, ", expected ",
             name_of(dtype), ' ', shape);
  }
  return std::string(key.string());
}

double read_margin(JsonValue value) {
  const double margin = value.number();
  if (margin < 0) value.fail("is ", margin, ", expected at least 0");
  return margin;
}

void read_positions(JsonValue bug, PlantedBug& out, const RecordingHeader& header) {
  const JsonValue key = bug.at("at");
  const TensorInfo& info = resolve(key, header);
  if (info.dtype != DType::i64 || info.shape.rank() != 1 || info.shape[0] > kMostPositions) {
    key.fail("is ", key.string(), ", ", name_of(info.dtype), ' ', info.shape,
             ", expected i64 of one dimension and at most ", kMostPositions, " positions");
  }
  out.at = key.string();
  out.values = read_like(bug.at("values"), DType::f32, info.shape, header);
}

}  // namespace

std::vector<MemberRef> read_members(JsonValue members, const TensorInfo& output,
                                    const RecordingHeader& header) {
  if (size_of(output.dtype) != 2 || !is_floating(output.dtype)) {
    members.fail("is in an output of ", name_of(output.dtype), ", expected f16 or bf16");
  }
  std::vector<MemberRef> out;
  for (const JsonValue member : members.items()) {
    member.only({"name", "values", "bits"});
    const std::string name = read_name(member.at("name"));
    if (std::ranges::find(out, name, &MemberRef::name) != out.end()) {
      member.at("name").fail("is ", printable(name), ", which an earlier member has");
    }
    out.push_back({name, read_like(member.at("values"), output.dtype, output.shape, header),
                   read_figures("bits", member.at("bits"))});
  }
  return out;
}

std::string read_mask(JsonValue field, const TensorInfo& output, bool discrete,
                      const RecordingHeader& header) {
  if (is_floating(output.dtype) == discrete) {
    field.fail("is in an output of ", name_of(output.dtype), ", expected ",
               discrete ? "integers or bool" : "floats");
  }
  return read_like(field, DType::boolean, output.shape, header);
}

LegalRef read_legal(JsonValue field, const TensorInfo& output, const RecordingHeader& header) {
  field.only({"at", "values", "distinct"});
  const JsonValue at = field.at("at");
  const TensorInfo& positions = resolve(at, header);
  if (positions.dtype != DType::i64 || positions.shape.rank() != 1) {
    at.fail("is ", at.string(), ", ", name_of(positions.dtype), ' ', positions.shape,
            ", expected i64 of one dimension");
  }
  LegalRef out{std::string(at.string()),
               read_like(field.at("values"), DType::i64, positions.shape, header)};
  if (const auto distinct = field.find("distinct")) {
    out.distinct = distinct->integer();
    if (out.distinct < 0 || out.distinct >= output.shape.rank()) {
      distinct->fail("is ", out.distinct, ", expected an axis of ", output.shape);
    }
  }
  return out;
}

std::vector<PlantedBug> read_bugs(JsonValue bugs, const std::map<std::string, OutputRef>& outputs,
                                  const RecordingHeader& header) {
  std::vector<PlantedBug> out;
  for (const JsonValue bug : bugs.items()) {
    bug.only({"name", "kind", "output", "margin", "at", "values"});
    PlantedBug read{read_name(bug.at("name")),
                    read_name(bug.at("kind")),
                    read_name(bug.at("output")),
                    read_margin(bug.at("margin")),
                    {},
                    {}};
    if (outputs.count(read.output) == 0) {
      bug.at("output").fail("is ", printable(read.output), ", which outputs does not have");
    }
    read_positions(bug, read, header);
    out.push_back(std::move(read));
  }
  return out;
}

}  // namespace plumb::harness
