#include "harness/model/model_folder.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "harness/execution/execute.h"
#include "harness/io/json.h"
#include "harness/io/printable.h"
#include "harness/recording/model_config.h"
#include "harness/recording/recording_fields.h"
#include "harness/recording/weights_folder.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWeights = "model.safetensors";
constexpr const char* kRecording = "recording.json";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr size_t kMostNamed = 20;  // in one error

std::shared_ptr<const JsonDocument> read_json(const fs::path& path) {
  const File file = File::open(path);
  return JsonDocument::parse(file.name(), file.read_all(JsonLimits().bytes));
}

// ": a, b, c and 7 more"
std::string listed(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < std::min(names.size(), kMostNamed); ++i) {
    out += (i ? ", " : ": ") + names[i];
  }
  return names.size() > kMostNamed ? text(out, " and ", names.size() - kMostNamed, " more") : out;
}

[[noreturn]] void no_weights(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string suffix = entry.path().extension().string();
    if (suffix != ".bin" && suffix != ".pth" && suffix != ".pt") continue;
    throw BadInput(text(
        folder.string(), ": has ", entry.path().filename().string(),
        " but no model.safetensors; pickled weights are not read. Convert them: python -c \"from "
        "transformers import AutoModelForCausalLM as M; M.from_pretrained('",
        folder.string(), "', dtype='auto').save_pretrained('CONVERTED')\""));
  }
  throw BadInput(text(folder.string(), ": has neither ", kWeights, " nor ", kIndex));
}

}  // namespace

blocks::Params read_model_config(const fs::path& file) {
  const auto document = read_json(file);
  return read_config(document->root(), file.string());
}

ModelFolder::ModelFolder(const fs::path& folder) : path_(folder) {
  std::error_code failure;
  if (!fs::is_directory(folder, failure)) {
    throw BadInput(
        text(folder.string(), ": is no folder; expected one with config.json and ", kWeights));
  }
  if (fs::exists(folder / kRecording, failure)) {
    read_recording();
    return;
  }
  config_ = read_model_config(folder / "config.json");
  if (fs::exists(folder / kIndex, failure)) {
    read_index();
  } else if (fs::exists(folder / kWeights, failure)) {
    add_shard(File::open(folder / kWeights));
  } else {
    no_weights(folder);
  }
}

void ModelFolder::add_shard(File opened, Known known) {
  SafetensorsFile file(std::move(opened));
  auto mapped = std::make_shared<const MappedFile>(file.file());
  for (const auto& [key, entry] : file.entries()) {
    const auto [at, fresh] = weights_.emplace(key, Place{shards_.size(), entry});
    if (!fresh && known == Known::refused) {
      throw BadInput(text(file.file().name(), ": the tensor ", printable(key), " is also in ",
                          shards_[at->second.shard].file.file().name()));
    }
  }
  shards_.push_back({std::move(file), std::move(mapped)});
}

void ModelFolder::read_recording() {
  const auto document = read_json(path_ / kRecording);
  config_ = read_config(document->root().at("config"), (path_ / kRecording).string() + ": config");
  const JsonValue root = document->root();
  const auto referred = root.find("model_files");
  const auto own = root.at("files").find("weights");
  if (own || !referred) {
    const JsonValue file = (own ? *own : root.at("files").at("weights")).at("path");
    add_shard(File::open_beneath(path_, file.string()));
  }
  if (!referred) return;
  const std::string folder(referred->at("folder").string());
  for (const auto& [name, entry] : referred->at("files").members()) {
    if (!is_plain_file_name(name) || name.find('/') != std::string_view::npos) {
      entry.fail("is called ", printable(name), ", expected a plain file name");
    }
    add_shard(open_model_file(folder, name, entry), Known::kept);
  }
}

void ModelFolder::read_index() {
  const auto document = read_json(path_ / kIndex);
  const JsonValue map = document->root().at("weight_map");
  std::map<std::string, std::string> file_of;
  std::set<std::string> names;
  for (const JsonMember member : map.members()) {
    const std::string name(member.value.string());
    if (!is_plain_file_name(name) || name.substr(0, 3) == "../") {
      member.value.fail("is ", printable(name), ", expected the name of a file in this folder");
    }
    file_of.emplace(read_key(member), name);
    names.insert(name);
  }
  for (const std::string& name : names) add_shard(File::open(path_ / name));
  for (const auto& [key, name] : file_of) {
    const auto found = weights_.find(key);
    const bool there = found != weights_.end() &&
                       shards_[found->second.shard].file.file().name() == (path_ / name).string();
    if (!there) {
      throw BadInput(text((path_ / kIndex).string(), ": says that ", printable(key), " is in ",
                          name, ", which does not have it"));
    }
  }
}

DType ModelFolder::dtype() const {
  if (const auto stated = blocks::Config(config_).dtype()) return *stated;
  for (const auto& [name, place] : weights_) {
    const DType dtype = place.entry.dtype;
    if (is_floating(dtype) && size_of(dtype) > 1) return dtype;
  }
  return DType::f32;
}

std::vector<int64_t> ModelFolder::stop_tokens() const {
  const fs::path file = path_ / "generation_config.json";
  std::error_code failure;
  if (fs::exists(file, failure)) {
    const auto ids = blocks::Config(read_model_config(file)).ids("eos_token_id");
    if (!ids.empty()) return ids;
  }
  return blocks::Config(config_).ids("eos_token_id");
}

int64_t ModelFolder::bytes() const {
  int64_t out = 0;
  for (const auto& [name, place] : weights_) out += place.entry.end - place.entry.begin;
  return out;
}

void ModelFolder::check() const {
  for (const Shard& shard : shards_) shard.mapped->check();
}

Tensor ModelFolder::host(const Place& place, const void* owner) const {
  const Shard& shard = shards_[place.shard];
  return mapped_tensor(shard.mapped, shard.file.position(place.entry), owner, place.entry.dtype,
                       place.entry.shape);
}

void ModelFolder::require_expected(const blocks::Weights& expected) const {
  std::vector<std::string> missing, shapes, unused;
  for (const auto& [name, shape] : expected.asked()) {
    const auto found = weights_.find(name);
    const auto kept = expected.asked_as_stored().find(name);
    const bool stays = kept != expected.asked_as_stored().end();
    if (found == weights_.end()) {
      if (!stays || !kept->second.optional) missing.push_back(name);
      continue;
    }
    const SafetensorsEntry& entry = found->second.entry;
    if (stays) {
      const std::vector<DType>& dtypes = kept->second.dtypes;
      if (!(entry.shape == shape) || std::ranges::find(dtypes, entry.dtype) == dtypes.end()) {
        shapes.push_back(text(name, ' ', name_of(entry.dtype), ' ', entry.shape, " instead of ",
                              name_of(dtypes[0]), ' ', shape));
      }
    } else if (!(entry.shape == shape)) {
      shapes.push_back(text(name, ' ', entry.shape, " instead of ", shape));
    } else if (!is_floating(entry.dtype) || size_of(entry.dtype) < 2) {
      shapes.push_back(text(name, " in ", name_of(entry.dtype), " instead of f32, f16 or bf16"));
    }
  }
  for (const auto& [name, place] : weights_) {
    if (expected.asked().count(name)) continue;
    const auto tie = expected.ties().find(name);
    if (tie == expected.ties().end()) {
      unused.push_back(printable(name));
      continue;
    }
    const auto same = weights_.find(tie->second);
    if (same == weights_.end()) continue;  // missing, which is said
    const Tensor a = host(place, nullptr), b = host(same->second, nullptr);
    if (a.dtype() != b.dtype() || !(a.shape() == b.shape()) ||
        std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())) != 0) {
      unused.push_back(name + " (the configuration ties it to " + tie->second +
                       ", which has other values)");
    }
  }
  std::string problems;
  const auto add = [&](const char* what, const std::vector<std::string>& names) {
    if (names.empty()) return;
    problems += text(problems.empty() ? "" : "; ", what, " (", names.size(), ')', listed(names));
  };
  add("missing", missing);
  add("of another shape or dtype", shapes);
  add("unused", unused);
  if (!problems.empty()) {
    throw BadInput(
        text(path_.string(), ": the weights are not those that config.json implies: ", problems));
  }
}

// In the host's memory, or a copy in the device's.
Tensor ModelFolder::placed(const Place& place, Device& device, DType dtype) const {
  const Tensor stored = host(place, device.host_owner());
  const bool aligned = reinterpret_cast<uintptr_t>(stored.raw()) % size_of(stored.dtype()) == 0;
  if (device.host_owner() && stored.dtype() == dtype && aligned) return stored;
  const Tensor values = converted(stored, dtype);
  const Tensor out = device.allocate(dtype, values.shape());
  device.upload(out, values.raw());
  return out;
}

std::unique_ptr<blocks::CausalLm> ModelFolder::load(Device& device, DType dtype) const {
  const blocks::Weights expected = blocks::expected_weights(blocks::Config(config_));
  require_expected(expected);
  auto tensors = std::make_shared<blocks::Weights::Map>();
  for (const auto& [name, shape] : expected.asked()) {
    const auto found = weights_.find(name);
    if (found == weights_.end()) continue;  // it need not be there
    const bool stays = expected.asked_as_stored().contains(name);
    tensors->emplace(name,
                     placed(found->second, device, stays ? found->second.entry.dtype : dtype));
  }
  device.synchronize();
  check();
  return blocks::load_model(blocks::Weights(tensors, path_.string()), blocks::Config(config_));
}

}  // namespace plumb::harness
