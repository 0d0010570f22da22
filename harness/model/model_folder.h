// A model as HuggingFace publishes it: a folder with config.json and safetensors.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "blocks/models/causal_lm.h"
#include "harness/io/mapped_file.h"
#include "harness/io/safetensors.h"

namespace plumb::harness {

// A config.json without the keys that no model reads. Throws BadInput.
blocks::Params read_model_config(const std::filesystem::path& file);

// The files of a folder, their headers checked; links are followed, as the hub's own cache consists
// of them. Everything throws BadInput that says what to do:
//   model.safetensors, or model.safetensors.index.json and the files that it names; no others
//   a recording instead: recording.json and the weights that it names
//   only *.bin or *.pth: how to convert them
//   weights that the configuration does not imply, that are missing or have another shape: one list
class ModelFolder {
 public:
  explicit ModelFolder(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return path_; }
  const blocks::Params& config() const { return config_; }
  // The configuration's, else that of the first float tensor.
  DType dtype() const;
  // Of generation_config.json, else of config.json.
  std::vector<int64_t> stop_tokens() const;
  int64_t bytes() const;  // of all weights, as stored

  // The model with its weights on the device in `dtype`: in place where the device works on host
  // memory and the stored dtype is that one, else copied, each element rounded once.
  std::unique_ptr<blocks::CausalLm> load(Device& device, DType dtype) const;
  // Throws BadInput where a file changed since: results cannot be trusted.
  void check() const;

 private:
  struct Shard {
    SafetensorsFile file;
    std::shared_ptr<const MappedFile> mapped;
  };
  struct Place {
    size_t shard;
    SafetensorsEntry entry;
  };

  // What a tensor is that another file has, too: an error, or the one that is known already (a
  // recording's own, which was changed before it was recorded).
  enum class Known { refused, kept };
  void add_shard(File file, Known known = Known::refused);
  void read_index();
  void read_recording();
  void require_expected(const blocks::Weights& expected) const;
  Tensor host(const Place& place, const void* owner) const;
  Tensor placed(const Place& place, Device& device, DType dtype) const;

  std::filesystem::path path_;
  blocks::Params config_;
  std::vector<Shard> shards_;
  std::map<std::string, Place> weights_;
};

}  // namespace plumb::harness
