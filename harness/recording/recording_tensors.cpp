#include "harness/recording/recording_tensors.h"

#include <unordered_set>

#include "harness/io/printable.h"
#include "harness/recording/recording_fields.h"

namespace plumb::harness {
namespace {

constexpr std::string_view kGenerator = "splitmix64";

Generator read_generator(JsonValue value, const TensorInfo& tensor) {
  value.only({"kind", "seed", "exponent", "offset"});
  const JsonValue kind = value.at("kind");
  if (kind.string() != kGenerator) {
    kind.fail("is ", printable(kind.string()), ", expected \"", kGenerator, '"');
  }
  if (tensor.dtype != DType::f32 && tensor.dtype != DType::f16 && tensor.dtype != DType::bf16) {
    value.fail("makes f32, f16 or bf16, but the tensor is ", name_of(tensor.dtype));
  }
  const int64_t bytes = tensor.shape.numel() * size_of(tensor.dtype);
  if (bytes > kLargestGenerated) {
    value.fail("would make ", bytes, " bytes, the limit is ", kLargestGenerated);
  }
  Generator out;
  out.seed = value.at("seed").integer(0);
  out.exponent = static_cast<int>(value.at("exponent").integer(-40, 0));
  out.offset = static_cast<float>(value.at("offset").integer(0, 1));
  return out;
}

// t<number> is a tensor of the run, w<number> a weight.
TensorInfo read_tensor(const JsonMember& member, const std::map<std::string, RecordedFile>& files) {
  const auto& [key, value] = member;
  const bool known = key.size() > 1 && (key[0] == 't' || key[0] == 'w') &&
                     key.find_first_not_of("0123456789", 1) == std::string_view::npos;
  if (!known) value.fail("its key is ", printable(key), ", expected t<number> or w<number>");
  const bool weight = key[0] == 'w';
  if (weight) {
    value.only({"file", "model_file", "name", "dtype", "shape", "sha256", "generator"});
  } else {
    value.only({"file", "payload_of", "dtype", "shape", "sha256", "generator"});
  }
  const auto payload_of = value.find("payload_of");
  TensorInfo info;
  info.name = weight ? read_name(value.at("name")) : std::string(key);
  info.dtype = read_tensor_dtype(value.at("dtype"));
  info.shape = read_extents(value.at("shape"));
  info.sha256 = read_sha256(value.at("sha256"));
  if (const auto generator = value.find("generator")) {
    for (const char* other : {"file", "model_file", "payload_of"}) {
      if (const auto found = value.find(other)) found->fail("cannot be combined with a generator");
    }
    info.generator = read_generator(*generator, info);
    return info;
  }
  if (const auto of_model = value.find("model_file")) {
    if (const auto file = value.find("file")) file->fail("cannot be combined with model_file");
    info.file = text(kModelFile, of_model->string());
    if (files.find(info.file) == files.end()) {
      of_model->fail("is ", printable(of_model->string()), ", which model_files does not list");
    }
    return info;
  }
  const JsonValue file = value.at("file");
  const std::string_view expected = weight ? "weights" : "tensors";
  if (file.string() != expected) {
    file.fail("is ", printable(file.string()), ", expected \"", expected, "\" for ", key);
  }
  if (files.find(std::string(expected)) == files.end()) {
    file.fail("is \"", expected, "\", which files does not list");
  }
  info.file = expected;
  if (payload_of) {
    info.name = payload_of->string();
    info.shares_payload = true;
  }
  return info;
}

int64_t bytes_of(const TensorInfo& info) { return info.shape.numel() * size_of(info.dtype); }

// An entry with payload_of has the bytes of another one, which has a payload of its own.
void check_shared(JsonValue value, const TensorInfo& info,
                  const std::unordered_map<std::string, TensorInfo>& tensors) {
  const JsonValue field = value.at("payload_of");
  const auto found = tensors.find(info.name);
  if (found == tensors.end()) {
    field.fail("is ", printable(info.name), ", which the table of tensors does not have");
  }
  const TensorInfo& owner = found->second;
  if (owner.generator) field.fail("is ", info.name, ", which is generated and has no payload");
  if (owner.file != info.file) {
    field.fail("is ", info.name, ", whose payload is in ", printable(owner.file), ", not in \"",
               info.file, '"');
  }
  if (owner.shares_payload) {
    field.fail("is ", info.name, ", which itself has the payload of ", printable(owner.name));
  }
  if (owner.dtype != info.dtype) {
    value.at("dtype").fail("is ", name_of(info.dtype), ", but ", info.name,
                           ", whose payload it has, is ", name_of(owner.dtype));
  }
  if (bytes_of(owner) != bytes_of(info)) {
    value.at("shape").fail("is ", info.shape, " of ", bytes_of(info), " bytes, but ", info.name,
                           ", whose payload it has, is ", owner.shape, " of ", bytes_of(owner));
  }
  if (owner.sha256 != info.sha256) {
    value.at("sha256").fail("is ", info.sha256, ", but that of ", info.name,
                            ", whose payload it has, is ", owner.sha256);
  }
}

}  // namespace

std::unordered_map<std::string, TensorInfo> read_tensors(
    JsonValue table, const std::map<std::string, RecordedFile>& files) {
  std::unordered_map<std::string, TensorInfo> tensors;
  for (const JsonMember member : table.members()) {
    tensors.emplace(member.name, read_tensor(member, files));
  }
  std::unordered_set<std::string> names;  // of weights
  for (const auto& [key, value] : table.members()) {
    const TensorInfo& info = tensors.find(std::string(key))->second;
    if (info.shares_payload) check_shared(value, info, tensors);
    if (key[0] == 'w' && !names.insert(info.name).second) {
      value.at("name").fail("is ", printable(info.name), ", which another weight has");
    }
  }
  return tensors;
}

void check_payload_file(JsonValue root, const RecordingHeader& header, const std::string& file,
                        const SafetensorsFile& payload) {
  const RecordedFile& recorded = header.files.at(file);
  if (payload.file().size() != recorded.bytes) {
    recorded.field.at("bytes").fail("is ", recorded.bytes, ", but ", payload.file().name(), " has ",
                                    payload.file().size(),
                                    " bytes: fetch the file again, or record again");
  }
  for (const auto& [key, value] : root.at("tensors").members()) {
    const TensorInfo& info = header.tensors.find(std::string(key))->second;
    if (info.file != file || info.shares_payload) continue;
    const auto found = payload.entries().find(info.name);
    if (found == payload.entries().end()) {
      value.fail("there is no tensor ", printable(info.name), " in ", payload.file().name());
    }
    const auto& [dtype, shape] = std::pair(found->second.dtype, found->second.shape);
    if (dtype != info.dtype) {
      value.at("dtype").fail("is ", name_of(info.dtype), ", but ", payload.file().name(), " has ",
                             name_of(dtype));
    }
    if (!(shape == info.shape)) {
      value.at("shape").fail("is ", info.shape, ", but ", payload.file().name(), " has ", shape);
    }
  }
}

}  // namespace plumb::harness
