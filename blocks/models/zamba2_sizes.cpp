#include "blocks/models/zamba2_sizes.h"

#include "kernels/core/error.h"

namespace plumb::blocks {
namespace {

// A key that transformers derives from others and stores all the same.
void require_derived(const Config& config, std::string_view name, int64_t expected) {
  const int64_t stated = config.size_or(name, expected);
  if (stated != expected) {
    throw BadInput(text(config.where(), ": ", name, " is ", stated, ", the other keys imply ",
                        expected, "; remove it or correct them"));
  }
}

// `layers_block_type`, or `layer_types`, as newer configurations may call it.
std::vector<int64_t> read_hybrid_layers(const Config& config, int64_t layers) {
  const char* key = config.has("layers_block_type") ? "layers_block_type" : "layer_types";
  const std::vector<std::string> types = config.per_layer(key, layers);
  require<Unsupported>(!types.empty(), "config", config.where(),
                       ": has no layers_block_type; only a configuration that lists its ", layers,
                       " layers is read");
  std::vector<int64_t> out;
  for (int64_t i = 0; i < layers; ++i) {
    const std::string& type = types[static_cast<size_t>(i)];
    if (type == "hybrid") {
      out.push_back(i);
    } else if (type != "linear_attention" && type != "mamba") {
      throw Unsupported(text(config.where(), ": ", key, " has \"", type,
                             "\"; known: hybrid and linear_attention, formerly mamba"));
    }
  }
  if (config.has("hybrid_layer_ids") && config.ids("hybrid_layer_ids") != out) {
    throw BadInput(text(config.where(), ": hybrid_layer_ids are not the hybrid layers of ", key));
  }
  return out;
}

DecoderSizes read_shared(const Config& config) {
  const int64_t derived = 2 * config.size("hidden_size") / config.size("num_attention_heads");
  return DecoderSizes::read(config, config.size_or("attention_head_dim", derived));
}

void read_mixer(const Config& config, Zamba2Sizes& s) {
  const int64_t inner = config.size_or("mamba_expand", 2) * s.shared.hidden;
  s.mamba_heads = config.size_or("n_mamba_heads", 8);
  s.groups = config.size_or("mamba_ngroups", 1);
  s.columns = config.size_or("mamba_d_state", 64);
  s.taps = config.size_or("mamba_d_conv", 4);
  if (inner % s.mamba_heads != 0 || s.mamba_heads % s.groups != 0) {
    throw BadInput(text(config.where(), ": n_mamba_heads is ", s.mamba_heads,
                        "; it must divide the mixer's ", inner,
                        " channels and be a multiple of mamba_ngroups, ", s.groups));
  }
  s.mamba_head_dim = inner / s.mamba_heads;
  require_derived(config, "mamba_headdim", s.mamba_head_dim);
  s.scan.form = SsdForm::chunk;
  s.scan.chunk_size = config.size_or("chunk_size", 256);
  s.scan.dt_min = config.number_or("time_step_min", 0.001);
}

// Which neither transformers' forward pass nor this one reads.
void ignore_the_rest(const Config& config) {
  for (const char* training : {"time_step_floor", "time_step_max"}) config.ignore(training);
  for (const char* speed : {"use_mamba_kernels", "use_mem_eff_path"}) config.ignore(speed);
  for (const char* former : {"ffn_hidden_size", "kv_channels", "num_query_groups"}) {
    config.ignore(former);
  }
  config.ignore("num_logits_to_keep");  // of generate()
  config.ignore("use_conv_bias");       // the convolution always has one
  config.ignore("time_step_limit");     // time_step_min counts, and there is no upper one
}

}  // namespace

Zamba2Sizes Zamba2Sizes::read(const Config& config) {
  Zamba2Sizes s{};
  // First: an earlier format, with other names for all, differs here.
  s.hybrid_layers = read_hybrid_layers(config, config.size("num_hidden_layers"));
  s.shared = read_shared(config);
  s.blocks = config.size_or("num_mem_blocks", 1);
  s.adapter_rank = config.size_or("adapter_rank", 128);
  s.attention_adapters = config.boolean_or("use_shared_attention_adapter", false);
  s.rotary = config.boolean_or("use_mem_rope", false);
  s.bias = config.boolean_or("add_bias_linear", false);
  s.tied = config.boolean_or("tie_word_embeddings", true);
  s.function = read_activation(config, "hidden_act", "gelu");
  s.norm = {config.number_or("rms_norm_eps", 1e-5), 0, WeightRounding::before};
  require_derived(config, "attention_hidden_size", 2 * s.shared.hidden);
  require<Unsupported>(config.boolean_or("use_shared_mlp_adapter", true), "config", config.where(),
                       ": use_shared_mlp_adapter is false; an MLP without adapters is not "
                       "implemented, nor is it in transformers");
  constexpr int64_t kLongContext = 16384;
  if (config.boolean_or("use_long_context", false)) s.shared.max_position = kLongContext;
  read_mixer(config, s);
  ignore_the_rest(config);
  return s;
}

}  // namespace plumb::blocks
