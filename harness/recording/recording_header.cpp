#include "harness/recording/recording_header.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "harness/io/file.h"
#include "harness/io/printable.h"
#include "harness/recording/inside.h"
#include "harness/recording/recording_fields.h"
#include "harness/recording/recording_tensors.h"

namespace plumb::harness {
namespace {

constexpr std::string_view kFormat = "plumbline-recording";
constexpr std::array<std::string_view, 5> kModes = {"whole", "decode", "chunked", "padded",
                                                    "padded-decode"};

int64_t read_version(JsonValue root) {
  const JsonValue format = root.at("format");
  if (format.string() != kFormat) {
    format.fail("is ", printable(format.string()), ", expected \"", kFormat, '"');
  }
  const JsonValue version = root.at("version");
  if (version.integer() < kOldestVersion || version.integer() > kWithBackward) {
    version.fail("is ", version.integer(), "; this reader knows versions ", kOldestVersion, " to ",
                 kWithBackward,
                 ": record again with a matching python_inspector, or update the harness");
  }
  return version.integer();
}

void check_created(JsonValue value) {
  constexpr std::string_view kPattern = "dddd-dd-ddTdd:dd:ddZ";
  const std::string_view created = value.string();
  const bool same = std::equal(
      created.begin(), created.end(), kPattern.begin(), kPattern.end(),
      [](char c, char pattern) { return pattern == 'd' ? c >= '0' && c <= '9' : c == pattern; });
  if (!same) value.fail("is ", printable(created), ", expected a time as 2026-01-31T09:00:00Z");
}

void check_string_or_null(JsonValue value) {
  if (!value.is_null()) value.string();
}

void check_sizes_or_null(JsonValue value) {
  if (value.is_null()) return;
  for (const JsonValue item : value.items()) item.integer(0);
}

void check_producer(JsonValue producer) {
  for (const char* name : {"python_inspector", "torch", "transformers", "python", "platform"}) {
    producer.at(name);
  }
  for (const auto& [name, version] : producer.members()) version.string();
}

void check_model(JsonValue model) {
  model.only({"source", "seed", "revision", "weights_sha256"});
  model.at("source").string();
  const JsonValue seed = model.at("seed");
  if (!seed.is_null() && seed.kind() != JsonValue::Kind::integer) seed.integer();
  check_string_or_null(model.at("revision"));
  const JsonValue hash = model.at("weights_sha256");
  if (!hash.is_null()) read_sha256(hash);
}

std::string read_run(JsonValue run) {
  run.only({"mode", "batch", "tokens", "steps", "chunks", "left_pad", "cache", "spread"});
  if (const auto spread = run.find("spread")) spread->integer(0);
  for (const char* name : {"batch", "tokens", "steps"}) run.at(name).integer(0);
  check_sizes_or_null(run.at("chunks"));
  check_sizes_or_null(run.at("left_pad"));
  check_string_or_null(run.at("cache"));
  return std::string(read_one_of(run.at("mode"), kModes));
}

void read_provenance(JsonValue provenance, RecordingHeader& header) {
  provenance.only({"created", "command", "producer", "architecture", "model_type", "dtype",
                   "attention", "model", "run", "notes", "warnings"});
  check_created(provenance.at("created"));
  provenance.at("command").string();
  check_producer(provenance.at("producer"));
  header.architecture = read_name(provenance.at("architecture"));
  header.model_type = read_name(provenance.at("model_type"));
  header.dtype = read_recorded_dtype(provenance.at("dtype"));
  check_string_or_null(provenance.at("attention"));
  check_model(provenance.at("model"));
  header.mode = read_run(provenance.at("run"));
  refuse_before(kWithTraces, provenance.at("run"), header.version, {"spread"});
  provenance.at("notes").members();
  for (const JsonValue warning : provenance.at("warnings").items()) warning.string();
}

// A parameter that is among the recorded weights must have their dtype and shape.
void check_parameter(JsonValue parameter, const TensorInfo& weight) {
  const JsonValue dtype = parameter.at("dtype");
  if (dtype.string() != name_of(weight.dtype)) {
    dtype.fail("is ", printable(dtype.string()), ", but the tensor ", printable(weight.name),
               " is ", name_of(weight.dtype));
  }
  const Shape shape = read_extents(parameter.at("shape"));
  if (!(shape == weight.shape)) {
    parameter.at("shape").fail("is ", shape, ", but the tensor ", printable(weight.name), " is ",
                               weight.shape);
  }
}

void check_network(JsonValue network, const std::unordered_map<std::string, TensorInfo>& tensors) {
  std::unordered_map<std::string_view, const TensorInfo*> weights;
  for (const auto& [key, info] : tensors) {
    if (key[0] == 'w') weights.emplace(info.name, &info);
  }
  for (const JsonValue module : network.items()) {
    module.only({"path", "class", "parameters"});
    const std::string_view path = module.at("path").string();
    read_name(module.at("class"));
    for (const auto& [name, parameter] : module.at("parameters").members()) {
      parameter.only({"dtype", "shape", "tied"});
      parameter.at("dtype").string();
      read_extents(parameter.at("shape"));
      check_string_or_null(parameter.at("tied"));
      const auto weight = weights.find(text(path, path.empty() ? "" : ".", name));
      if (weight != weights.end()) check_parameter(parameter, *weight->second);
    }
  }
}

Contract read_contract(JsonValue value) {
  constexpr std::array<std::string_view, 2> kPoints = {"eager", "fused"};
  constexpr std::array<std::string_view, 2> kRoundings = {"nearest", "toward_zero"};
  value.only({"storage", "multiply", "accumulator", "points", "inside"});
  Contract contract;
  contract.storage = read_recorded_dtype(value.at("storage"));
  contract.multiply = read_recorded_dtype(value.at("multiply"));
  const JsonValue accumulator = value.at("accumulator");
  accumulator.only({"bits", "rounding"});
  contract.accumulator.bits = static_cast<int>(accumulator.at("bits").integer(1, 64));
  contract.accumulator.rounding = read_one_of(accumulator.at("rounding"), kRoundings) == "nearest"
                                      ? SumRounding::nearest
                                      : SumRounding::toward_zero;
  contract.points = read_one_of(value.at("points"), kPoints) == "eager" ? RoundingPoints::eager
                                                                        : RoundingPoints::fused;
  return contract;
}

// The hash of a large file is of its header alone; those of its tensors are in the table.
RecordedFile read_file(JsonValue value) {
  value.only({"path", "bytes", "sha256", "header_sha256"});
  const JsonValue path = value.at("path");
  if (!is_plain_file_name(path.string())) {
    path.fail("is ", printable(path.string()),
              ", expected a plain file name, or ../ and a plain file name");
  }
  const auto header = value.find("header_sha256");
  if (header && value.find("sha256"))
    header->fail("cannot be combined with sha256; one of them is enough");
  read_sha256(header ? *header : value.at("sha256"));
  return {value, std::string(path.string()), value.at("bytes").integer(0)};
}

// Files of the folder that the model was loaded from: {"folder": "/models/x", "files": {name:
// {"bytes": n}}}.
void read_model_files(JsonValue value, RecordingHeader& header) {
  value.only({"folder", "files"});
  const JsonValue folder = value.at("folder");
  if (!std::filesystem::path(folder.string()).is_absolute()) {
    folder.fail("is ", printable(folder.string()), ", expected an absolute path");
  }
  header.model_folder = folder.string();
  for (const auto& [name, file] : value.at("files").members()) {
    file.only({"bytes"});
    if (!is_plain_file_name(name) || name.find('/') != std::string_view::npos) {
      file.fail("is called ", printable(name), ", expected a plain file name");
    }
    header.files.emplace(text(kModelFile, name),
                         RecordedFile{file, std::string(name), file.at("bytes").integer(0), true});
  }
}

}  // namespace

RecordingHeader read_recording_header(JsonValue root) {
  RecordingHeader header;
  header.version = read_version(root);
  root.only({"format", "version", "name", "provenance", "config", "network", "contracts", "files",
             "model_files", "tensors", "traces", "checkpoints"});
  refuse_before(kWithTraces, root, header.version, {"traces"});
  header.name = read_name(root.at("name"));
  read_provenance(root.at("provenance"), header);
  root.at("config").members();
  for (const JsonMember member : root.at("contracts").members()) {
    const std::string key = read_key(member);
    header.contracts.emplace(key, read_contract(member.value));
    if (const auto inside = member.value.find("inside")) {
      header.inside.emplace(key, read_inside(*inside));
    }
  }
  const JsonValue files = root.at("files");
  files.only({"tensors", "weights"});
  files.at("tensors");
  for (const auto& [name, file] : files.members()) header.files.emplace(name, read_file(file));
  if (const auto model = root.find("model_files")) read_model_files(*model, header);
  header.tensors = read_tensors(root.at("tensors"), header.files);
  if (const auto traces = root.find("traces")) header.traces = read_traces(*traces);
  check_network(root.at("network"), header.tensors);
  return header;
}

}  // namespace plumb::harness
