#include "blocks/models/config.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/error.h"

namespace plumb::blocks {

const std::vector<IrrelevantKey>& irrelevant_config_keys() {
  constexpr std::string_view origin = "where the file comes from";
  constexpr std::string_view training = "training only";
  constexpr std::string_view outputs = "which values Python returns, not what they are";
  constexpr std::string_view labels = "classification heads only";
  constexpr std::string_view ids = "for who makes token ids";
  constexpr std::string_view generation = "a default of generate(), no part of the model";
  static const std::vector<IrrelevantKey> keys = {
      {"_name_or_path", origin},
      {"_model_name_or_path", origin},  // of a GGUF file that transformers read
      {"_commit_hash", origin},
      {"transformers.js_config", "of another program, transformers.js"},
      {"is_llama_config", origin},
      {"ignore_keys_at_rope_validation", "which keys Python checks"},
      {"architectures", "the weights show which head there is"},
      {"transformers_version", origin},
      {"_attn_implementation_autoset", origin},
      {"initializer_range", training},
      {"attention_dropout", training},
      {"hidden_dropout", training},
      {"resid_pdrop", training},
      {"embd_pdrop", training},
      {"auto_map", origin},
      {"use_cache", outputs},
      {"cache_implementation", "how keys and values are stored, not what they are"},
      {"output_attentions", outputs},
      {"output_hidden_states", outputs},
      {"return_dict", outputs},
      {"torchscript", outputs},
      {"id2label", labels},
      {"label2id", labels},
      {"num_labels", labels},
      {"problem_type", labels},
      {"finetuning_task", labels},
      {"task_specific_params", generation},
      {"chunk_size_feed_forward", "memory only: the MLP in pieces gives the same"},
      {"pretraining_tp", "products in pieces, as in training; transformers no longer reads it"},
      {"tokenizer_class", ids},
      {"bos_token_id", ids},
      {"pad_token_id", ids},
      {"unk_token_id", ids},
      {"sep_token_id", ids},
      {"cls_token_id", ids},
      {"mask_token_id", ids},
      {"prefix", ids},
  };
  return keys;
}

namespace {

// Defaults of generate(), which earlier versions of transformers wrote here; its classes drop them.
constexpr std::string_view kGeneration[] = {"do_sample",
                                            "temperature",
                                            "top_k",
                                            "top_p",
                                            "max_length",
                                            "max_new_tokens",
                                            "min_length",
                                            "early_stopping",
                                            "num_beams",
                                            "typical_p",
                                            "repetition_penalty",
                                            "length_penalty",
                                            "no_repeat_ngram_size",
                                            "encoder_no_repeat_ngram_size",
                                            "bad_words_ids",
                                            "num_return_sequences",
                                            "output_scores",
                                            "return_dict_in_generate",
                                            "forced_bos_token_id",
                                            "forced_eos_token_id",
                                            "remove_invalid_values",
                                            "exponential_decay_length_penalty",
                                            "suppress_tokens",
                                            "begin_suppress_tokens",
                                            "epsilon_cutoff",
                                            "eta_cutoff",
                                            "encoder_repetition_penalty",
                                            "num_assistant_tokens",
                                            "num_assistant_tokens_schedule",
                                            "assistant_confidence_threshold",
                                            "assistant_lookbehind",
                                            "target_lookbehind",
                                            "num_beam_groups",
                                            "diversity_penalty"};

}  // namespace

bool is_irrelevant_config_key(std::string_view name) {
  const auto& keys = irrelevant_config_keys();
  return std::ranges::find(kGeneration, name) != std::end(kGeneration) ||
         std::any_of(keys.begin(), keys.end(), [&](const auto& key) { return key.name == name; });
}

bool Config::has(std::string_view name) const {
  return published_.has(name) && !published_.is_null(name);
}

int64_t Config::size(std::string_view name) const {
  const int64_t value = published_.integer(name);
  if (value < 1 || value > INT32_MAX) {
    throw BadInput(text(where(), ": ", name, " is ", value, ", expected 1 to 2^31 - 1"));
  }
  return value;
}

int64_t Config::size_or(std::string_view name, int64_t otherwise) const {
  return has(name) ? size(name) : otherwise;
}

double Config::number_or(std::string_view name, double otherwise) const {
  return has(name) ? published_.number(name) : otherwise;
}

bool Config::boolean_or(std::string_view name, bool otherwise) const {
  return has(name) ? published_.boolean(name) : otherwise;
}

std::string Config::string_or(std::string_view name, const std::string& otherwise) const {
  return has(name) ? published_.string(name) : otherwise;
}

std::optional<double> Config::number_or_none(std::string_view name,
                                             std::optional<double> absent) const {
  return published_.has(name) ? published_.number_or_null(name) : absent;
}

std::optional<int64_t> Config::window_or_none(std::string_view name,
                                              std::optional<int64_t> absent) const {
  if (!published_.has(name)) return absent;
  if (!has(name)) return std::nullopt;
  const int64_t window = size(name);
  // HF's cache keeps everything for a window of 1 (a slice of [-0:]): nothing to imitate.
  require<Unsupported>(window > 1, "config", where(), ": ", name, " is ", window, ", expected 2+");
  return window;
}

std::vector<std::string> Config::per_layer(std::string_view name, int64_t layers) const {
  if (!has(name)) return {};
  const std::vector<std::string>& types = published_.strings(name);
  if (static_cast<int64_t>(types.size()) != layers) {
    throw BadInput(text(where(), ": ", name, " has ", types.size(),
                        " entries, num_hidden_layers is ", layers));
  }
  return types;
}

std::vector<std::string> Config::layer_types(int64_t layers) const {
  std::vector<std::string> types = per_layer("layer_types", layers);
  for (const std::string& type : types) {
    if (type == "full_attention" || type == "sliding_attention") continue;
    throw Unsupported(text(where(), ": layer_types has \"", type,
                           "\"; this model's known ones are full_attention, sliding_attention"));
  }
  return types;
}

std::vector<int64_t> Config::ids(std::string_view name) const {
  if (!has(name)) return {};
  const Params::Value& value = published_.values().find(name)->second;
  const auto* list = std::get_if<std::vector<double>>(&value);
  if (!list) return {published_.integer(name)};
  published_.ignore(name);
  std::vector<int64_t> out;
  for (const double id : *list) {
    if (!(id >= 0 && id <= INT32_MAX) || id != static_cast<double>(static_cast<int64_t>(id))) {
      throw BadInput(text(where(), ": ", name, " holds ", id, ", expected token ids"));
    }
    out.push_back(static_cast<int64_t>(id));
  }
  return out;
}

std::optional<DType> Config::dtype() const {
  std::optional<DType> out;
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (!has(key)) continue;
    const std::string& name = published_.string(key);
    const DType found = name == "float32"    ? DType::f32
                        : name == "float16"  ? DType::f16
                        : name == "bfloat16" ? DType::bf16
                                             : DType::boolean;
    require<Unsupported>(found != DType::boolean, "config", where(), ": ", key, " is \"", name,
                         "\"; known: float32, float16, bfloat16");
    if (out && *out != found) {
      throw BadInput(text(where(), ": dtype and torch_dtype differ; remove one of them"));
    }
    out = found;
  }
  return out;
}

void Config::require_off(std::string_view name, std::string_view meaning) const {
  if (!has(name)) return;
  const Params::Value& value = published_.values().find(name)->second;
  const bool* flag = std::get_if<bool>(&value);
  published_.ignore(name);
  require<Unsupported>(flag && !*flag, "config", where(), ": ", name, ": ", meaning,
                       " is not implemented");
}

const Params* Config::quantisation() const {
  return has("quantization_config") ? &published_.object("quantization_config") : nullptr;
}

void Config::finish() const {
  require_off("is_encoder_decoder", "an encoder");
  require_off("add_cross_attention", "cross attention");
  require_off("is_decoder", "a decoder with cross attention");
  require_off("rope_interleaved", "rotary embedding of neighbouring channels");
  require_off("use_bidirectional_attention", "attention to later tokens");
  const std::string names = published_.untaken();
  if (names.empty()) return;
  throw BadInput(text(where(), ": unknown key(s) ", names,
                      "; whether they change the model is not known, so it is not run (remove "
                      "them if they do not)"));
}

namespace {

// A member of either spelling's object, or the default.
double rope_number(const Params& rope, std::string_view name, double otherwise) {
  return rope.has(name) ? rope.number_or_null(name).value_or(otherwise) : otherwise;
}

void copy_if_there(const Params& rope, const char* name, Params& out) {
  if (!rope.has(name)) return;
  const std::optional<double> value = rope.number_or_null(name);
  if (value) out.set(name, *value);
}

std::string rope_type(const Params& rope) {
  std::string type;
  for (const char* key : {"rope_type", "type"}) {
    if (!rope.has(key) || rope.is_null(key)) continue;
    const std::string& found = rope.string(key);
    if (!type.empty() && type != found) {
      throw BadInput(text(rope.where(), ": rope_type is \"", type, "\", type is \"", found, '"'));
    }
    type = found;
  }
  return type.empty() ? "default" : type;
}

// The parameters of a type under the names of RotaryFrequencies. `trained_outside`: the original
// length that the file has outside of `rope`, and which then holds; 0: none.
void read_rope(const Params& rope, const std::string& type, double max_position,
               double trained_outside, Params& out) {
  const auto original = [&] {
    const double inside = rope_number(rope, "original_max_position_embeddings", max_position);
    const double trained = trained_outside != 0 ? trained_outside : inside;
    out.set("original_max_position", trained);
    return trained;
  };
  const auto factor = [&](double trained) {
    out.set("factor", rope_number(rope, "factor", max_position / trained));
  };
  if (type == "linear") out.set("factor", rope.number("factor"));
  if (type == "dynamic") {
    out.set("factor", rope.number("factor"));
    out.set("max_position", max_position);
    rope.ignore("original_max_position_embeddings");  // transformers scales max_position_embeddings
  }
  if (type == "llama3") {
    original();
    for (const char* name : {"factor", "low_freq_factor", "high_freq_factor"}) {
      out.set(name, rope.number(name));
    }
  }
  if (type == "yarn") {
    factor(original());
    out.set("beta_fast", rope_number(rope, "beta_fast", 32));
    out.set("beta_slow", rope_number(rope, "beta_slow", 1));
    out.set("truncate", rope.has("truncate") ? rope.boolean("truncate") : true);
    for (const char* name : {"mscale", "mscale_all_dim"}) copy_if_there(rope, name, out);
    copy_if_there(rope, "attention_factor", out);
  }
  if (type == "longrope") {
    factor(original());
    out.set("long_factor", rope.numbers("long_factor"));
    out.set("short_factor", rope.numbers("short_factor"));
    copy_if_there(rope, "attention_factor", out);
  }
}

}  // namespace

Params Config::rotary(int64_t dim, int64_t max_position, const RotaryRules& rules) const {
  const Params none(where());
  const bool old = has("rope_scaling"), current = has("rope_parameters");
  if (old && current) {
    throw BadInput(text(where(), ": has rope_scaling and rope_parameters; remove one of them"));
  }
  const Params& rope = current ? published_.object("rope_parameters")
                       : old   ? published_.object("rope_scaling")
                               : none;
  const double theta = number_or("rope_theta", rope_number(rope, "rope_theta", rules.theta));
  if (theta != rope_number(rope, "rope_theta", theta)) {
    throw BadInput(text(where(), ": rope_theta is ", theta, " and, among the rope parameters, ",
                        rope_number(rope, "rope_theta", theta)));
  }
  const double share =
      rope_number(rope, "partial_rotary_factor", number_or("partial_rotary_factor", 1));
  require<Unsupported>(rules.partial ? share > 0 && share <= 1 : share == 1, "config", where(),
                       ": partial_rotary_factor is ", share, ", expected ",
                       rules.partial ? "more than 0 and at most 1" : "1 in this model");
  Params out(where() + ": rope");
  std::string type = rope_type(rope);
  if (rules.trained != 0 && (type == "su" || type == "yarn")) type = "longrope";
  out.set("type", type);
  out.set("theta", theta);
  out.set("dim", std::floor(static_cast<double>(dim) * share));
  const double trained = rules.trained ? number_or("original_max_position_embeddings",
                                                   static_cast<double>(rules.trained))
                                       : 0;
  read_rope(rope, type, static_cast<double>(max_position), trained, out);
  return out;
}

}  // namespace plumb::blocks
