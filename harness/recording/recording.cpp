#include "harness/recording/recording.h"

#include <algorithm>
#include <list>
#include <mutex>
#include <optional>
#include <set>

#include "blocks/catalog.h"
#include "harness/io/file.h"
#include "harness/io/printable.h"
#include "harness/io/safetensors.h"
#include "harness/io/sha256.h"
#include "harness/recording/inside.h"
#include "harness/recording/payload.h"
#include "harness/recording/recording_chain.h"
#include "harness/recording/recording_checkpoint.h"
#include "harness/recording/recording_header.h"
#include "harness/recording/recording_tensors.h"
#include "harness/recording/weights_folder.h"

namespace plumb::harness {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRecording = "recording.json";
constexpr int64_t kLargestRecording = int64_t{64} << 20;
constexpr int64_t kCacheBytes = int64_t{64} << 20;

// The tensors read last, up to a number of bytes. Thread-safe.
class TensorCache {
 public:
  Tensor find(const std::string& key) {
    const std::lock_guard lock(mutex_);
    for (auto item = items_.begin(); item != items_.end(); ++item) {
      if (item->first != key) continue;
      items_.splice(items_.begin(), items_, item);
      return item->second;
    }
    return {};
  }

  void add(const std::string& key, const Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    items_.emplace_front(key, tensor);
    bytes_ += tensor.bytes();
    while (bytes_ > kCacheBytes || items_.size() > kMostItems) {
      bytes_ -= items_.back().second.bytes();
      items_.pop_back();
    }
  }

 private:
  static constexpr size_t kMostItems = 256;  // found by a linear search
  std::mutex mutex_;
  std::list<std::pair<std::string, Tensor>> items_;
  int64_t bytes_ = 0;
};

// The error also names the field that named the file.
File open_file(const fs::path& folder, const RecordedFile& recorded) {
  try {
    return File::open_beneath(folder, recorded.path);
  } catch (const BadInput& error) {
    recorded.field.at("path").fail(error.what());
  }
}

// Of the file, or of its header where the recording has no more.
std::string recorded_part_sha256(const SafetensorsFile& payload, bool header_only) {
  if (!header_only) return sha256_hex(payload.file());
  std::string header(static_cast<size_t>(payload.header_bytes()), '\0');
  payload.file().read(0, header.data(), payload.header_bytes());
  return sha256_hex(header.data(), payload.header_bytes());
}

std::string field_of(const std::string& document, const std::string& key) {
  return text(document, ": tensors.", key, ".sha256");
}

void require_hash(const std::string& document, const Payload& payload, const std::string& key,
                  const TensorInfo& info, const std::string& hash) {
  if (hash == info.sha256) return;
  throw BadInput(text(payload.file().file().name(), ": the tensor ", printable(info.name),
                      " has SHA-256 ", hash, ", but ", field_of(document, key), " is ", info.sha256,
                      ": the file was changed; fetch it again, or record again"));
}

void require_file_hash(const SafetensorsFile& payload, JsonValue recorded) {
  const auto header = recorded.find("header_sha256");
  const std::string hash = recorded_part_sha256(payload, header.has_value());
  const JsonValue field = header ? *header : recorded.at("sha256");
  if (hash == field.string()) return;
  field.fail("is ", field.string(), ", but ", payload.file().name(), " has ", hash,
             ": the file was changed; fetch it again, or record again");
}

}  // namespace

struct Recording::State {
  fs::path folder;
  std::string sha256;
  std::shared_ptr<const JsonDocument> document;
  RecordingHeader header;
  std::map<std::string, Payload> files;
  std::vector<Checkpoint> checkpoints;
  TensorCache cache;
};

Recording Recording::open(const fs::path& folder, std::vector<std::string>* findings) {
  auto state = std::make_shared<State>();
  state->folder = folder.filename() == kRecording ? folder.parent_path() : folder;
  const File file = File::open_beneath(state->folder, kRecording);
  std::string text = file.read_all(kLargestRecording);
  state->sha256 = sha256_hex(text.data(), static_cast<int64_t>(text.size()));
  JsonLimits limits;
  limits.bytes = kLargestRecording;
  state->document = JsonDocument::parse(file.name(), std::move(text), limits);
  const JsonValue root = state->document->root();
  state->header = read_recording_header(root);
  for (const auto& [name, recorded] : state->header.files) {
    SafetensorsFile payload(recorded.of_model ? open_model_file(state->header.model_folder,
                                                                recorded.path, recorded.field)
                                              : open_file(state->folder, recorded));
    check_payload_file(root, state->header, name, payload);
    state->files.try_emplace(name, std::move(payload));
  }
  state->checkpoints = read_checkpoints(root.at("checkpoints"), state->header, findings);
  return Recording(std::move(state));
}

const fs::path& Recording::folder() const { return state_->folder; }
const std::string& Recording::name() const { return state_->header.name; }
DType Recording::dtype() const { return state_->header.dtype; }
const std::string& Recording::architecture() const { return state_->header.architecture; }
const std::string& Recording::model_type() const { return state_->header.model_type; }
const std::string& Recording::mode() const { return state_->header.mode; }
const std::string& Recording::sha256() const { return state_->sha256; }
JsonValue Recording::provenance() const { return state_->document->root().at("provenance"); }
JsonValue Recording::config() const { return state_->document->root().at("config"); }
JsonValue Recording::network() const { return state_->document->root().at("network"); }
const std::vector<Checkpoint>& Recording::checkpoints() const { return state_->checkpoints; }
bool Recording::chained() const { return is_chained(state_->checkpoints); }
const std::map<std::string, Contract>& Recording::contracts() const {
  return state_->header.contracts;
}

std::vector<std::string> Recording::inside() const {
  std::vector<std::string> out;
  for (const std::string& word : inside_words()) {
    const auto states = [&](const auto& contract) {
      return std::find(contract.second.begin(), contract.second.end(), word) !=
             contract.second.end();
    };
    const auto& inside = state_->header.inside;
    if (std::any_of(inside.begin(), inside.end(), states)) out.push_back(word);
  }
  return out;
}

std::string_view forward_of(std::string_view kind) {
  constexpr std::string_view kBackward = ".backward";
  return kind.ends_with(kBackward) ? kind.substr(0, kind.size() - kBackward.size()) : "";
}

namespace {

bool states_layouts(const blocks::Params& params) {
  const auto& values = params.values();
  return values.contains("layouts") || values.contains("layout") ||
         std::any_of(values.begin(), values.end(), [](const auto& it) {
           const auto* nested = std::get_if<blocks::Params>(&it.second);
           return nested && states_layouts(*nested);
         });
}

}  // namespace

bool has_quantised_weights(const Checkpoint& checkpoint) {
  return checkpoint.block != blocks::kOpBlock && states_layouts(checkpoint.params);
}

int token_axis(const std::vector<std::string>& axes) {
  for (const char* name : {"token", "kv_token"}) {
    const auto found = std::find(axes.begin(), axes.end(), name);
    if (found != axes.end()) return static_cast<int>(found - axes.begin());
  }
  return -1;
}

const TensorInfo& Recording::tensor_info(const std::string& key) const {
  const auto found = state_->header.tensors.find(key);
  if (found == state_->header.tensors.end()) {
    throw BadInput(
        text(state_->document->name(), ": tensors: there is no tensor ", printable(key)));
  }
  return found->second;
}

Shape Recording::output_shape(const OutputRef& output) const {
  Shape shape = tensor_info(output.tensor).shape;
  if (output.sampled) shape.set(token_axis(output.axes), output.sampled->of);
  return shape;
}

Tensor Recording::read(const std::string& key) const {
  const TensorInfo& info = tensor_info(key);
  if (const Tensor cached = state_->cache.find(key); cached.defined()) return cached;
  if (info.generator) {
    const Tensor made = generate(*info.generator, info.dtype, info.shape);
    const std::string hash = sha256_hex(made.raw(), made.bytes());
    if (hash != info.sha256) {
      throw BadInput(text(field_of(state_->document->name(), key), " is ", info.sha256,
                          ", but the generator gives ", hash,
                          ": the recording was changed, or made by another version; record again"));
    }
    state_->cache.add(key, made);
    return made;
  }
  const Payload& payload = state_->files.at(info.file);
  Tensor tensor = payload.read(info.name);
  if (info.shares_payload) tensor = tensor.view(info.shape);
  require_hash(state_->document->name(), payload, key, info,
               payload.sha256(info.name, tensor, info.sha256));
  if (!payload.mapped()) state_->cache.add(key, tensor);
  return tensor;
}

std::vector<std::string> Recording::wrong_hashes() const {
  std::vector<std::string> wrong;
  const auto find = [&](const auto& check) {
    try {
      check();
    } catch (const BadInput& error) {
      wrong.emplace_back(error.what());
    }
  };
  for (const auto& [name, recorded] : state_->header.files) {
    if (recorded.of_model) continue;  // known by its tensors' hashes
    find([&] { require_file_hash(state_->files.at(name).file(), recorded.field); });
  }
  for (const auto& [name, entry] : state_->document->root().at("tensors").members()) {
    const std::string key(name);
    const TensorInfo& info = tensor_info(key);
    if (info.shares_payload) continue;  // the hash is that of another one
    find([&] {
      if (info.generator) {
        read(key);
        return;
      }
      const Payload& payload = state_->files.at(info.file);
      require_hash(state_->document->name(), payload, key, info,
                   payload.fresh_sha256(info.name, payload.read(info.name)));
    });
  }
  return wrong;
}

std::vector<fs::path> find_recordings(const fs::path& root) {
  const auto holds_recording = [](const fs::path& folder) {
    std::error_code error;
    return fs::symlink_status(folder / kRecording, error).type() > fs::file_type::not_found;
  };
  std::vector<fs::path> found;
  if (root.filename() == kRecording) {
    found.push_back(root.parent_path());
  } else if (holds_recording(root)) {
    found.push_back(root);
  } else {
    std::error_code error;
    fs::recursive_directory_iterator entry(root, error);
    for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
      const fs::path name = entry->path().filename();
      if (name == kRecording) found.push_back(entry->path().parent_path());
      // Hidden: what an interrupted writer left, or no recordings at all.
      if (name.string().front() == '.') entry.disable_recursion_pending();
    }
    if (error) {
      throw BadInput(text(root.string(), ": cannot be searched for recordings: ", error.message()));
    }
  }
  if (found.empty()) {
    throw BadInput(text(root.string(), ": there is no ", kRecording,
                        " here or in any folder below; record one with inspector record"));
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace plumb::harness
