// A model's configuration as transformers publishes it (config.json), read strictly: a key that
// is not read is an error, and so is a value that asks for what is not implemented.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "blocks/params.h"
#include "kernels/core/dtype.h"

namespace plumb::blocks {

// Keys that change nothing about what a model computes from token ids, each with the reason.
struct IrrelevantKey {
  std::string_view name, reason;
};
const std::vector<IrrelevantKey>& irrelevant_config_keys();
bool is_irrelevant_config_key(std::string_view name);

// What a model's code makes of rotary parameters.
struct RotaryRules {
  double theta = 10000;  // where the file does not have it
  bool partial = false;  // rotates partial_rotary_factor of the head
  // Of a model whose original_max_position_embeddings is a key next to max_position_embeddings
  // (Phi3): its default. Then "su" and "yarn" are earlier names of longrope. 0: another model.
  int64_t trained = 0;
};

// Defaults are those of transformers' configuration classes; null counts as absent. All throw
// BadInput naming the file and the key.
class Config {
 public:
  // `published`: the file's members without the irrelevant ones.
  explicit Config(Params published) : published_(std::move(published)) {}

  const std::string& where() const { return published_.where(); }
  bool has(std::string_view name) const;  // and is not null

  int64_t size(std::string_view name) const;  // a positive number below 2^31, which must be there
  int64_t size_or(std::string_view name, int64_t otherwise) const;
  double number_or(std::string_view name, double otherwise) const;
  bool boolean_or(std::string_view name, bool otherwise) const;
  std::string string_or(std::string_view name, const std::string& otherwise) const;
  std::optional<double> number_or_none(std::string_view name, std::optional<double> absent) const;
  // At least 2, or null for none.
  std::optional<int64_t> window_or_none(std::string_view name, std::optional<int64_t> absent) const;

  // Strings, one per layer; empty where there is no such key.
  std::vector<std::string> per_layer(std::string_view name, int64_t layers) const;
  // The same of `layer_types`, each "full_attention" or "sliding_attention".
  std::vector<std::string> layer_types(int64_t layers) const;
  // One id or several, or none.
  std::vector<int64_t> ids(std::string_view name) const;
  // `dtype`, earlier `torch_dtype`.
  std::optional<DType> dtype() const;
  // Parameters of RotaryFrequencies for heads of `dim` channels: `rope_parameters`, earlier
  // `rope_scaling` and `rope_theta`.
  Params rotary(int64_t dim, int64_t max_position, const RotaryRules& rules) const;

  // `quantization_config`; null where there is none.
  const Params* quantisation() const;

  // Reads the key; Unsupported with `meaning` unless it is absent, null or false.
  void require_off(std::string_view name, std::string_view meaning) const;
  // A key that this model's code does not read, for a reason that the caller's comment gives.
  void ignore(std::string_view name) const { published_.ignore(name); }

  // BadInput listing the keys that were not read.
  void finish() const;

 private:
  Params published_;
};

}  // namespace plumb::blocks
