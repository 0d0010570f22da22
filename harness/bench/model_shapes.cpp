#include "harness/bench/model_shapes.h"

#include <string_view>
#include <utility>

#include "kernels/error.h"

namespace plumb {
namespace {

constexpr std::string_view kLlama3_8B = R"({"model_type": "llama",
  "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
  "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
  "tie_word_embeddings": false})";

constexpr std::string_view kLlama32_1B = R"({"model_type": "llama",
  "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64,
  "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
  "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
  "tie_word_embeddings": true})";

constexpr std::string_view kGemma2_2B = R"({"model_type": "gemma2",
  "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "head_dim": 256,
  "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 256000,
  "max_position_embeddings": 8192, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
  "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "sliding_window": 4096,
  "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0})";

// Every sixth layer is hybrid.
constexpr std::string_view kZamba2_12B = R"({"model_type": "zamba2",
  "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 38,
  "layers_block_type": [
    "mamba", "mamba", "mamba", "mamba", "mamba", "hybrid",
    "mamba", "mamba", "mamba", "mamba", "mamba", "hybrid",
    "mamba", "mamba", "mamba", "mamba", "mamba", "hybrid",
    "mamba", "mamba", "mamba", "mamba", "mamba", "hybrid",
    "mamba", "mamba", "mamba", "mamba", "mamba", "hybrid",
    "mamba", "mamba", "mamba", "mamba", "mamba", "hybrid", "mamba", "mamba"],
  "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000,
  "n_mamba_heads": 64, "mamba_ngroups": 1, "mamba_d_state": 128, "mamba_d_conv": 4,
  "mamba_expand": 2, "chunk_size": 256, "time_step_min": 0.001, "num_mem_blocks": 1,
  "adapter_rank": 128, "use_shared_attention_adapter": true, "use_mem_rope": true,
  "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_theta": 10000})";

constexpr std::string_view kTiny = R"({"model_type": "llama",
  "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16,
  "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
  "max_position_embeddings": 4096})";

constexpr std::string_view kTinyGemma2 = R"({"model_type": "gemma2",
  "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16,
  "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
  "max_position_embeddings": 4096, "query_pre_attn_scalar": 16, "sliding_window": 8})";

constexpr std::string_view kTinyZamba2 = R"({"model_type": "zamba2",
  "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
  "layers_block_type": ["mamba", "hybrid", "hybrid"], "num_attention_heads": 8,
  "num_key_value_heads": 8, "n_mamba_heads": 4, "mamba_d_state": 16, "chunk_size": 16,
  "adapter_rank": 8, "use_shared_attention_adapter": true, "use_mem_rope": true,
  "vocab_size": 512, "max_position_embeddings": 4096})";

constexpr std::pair<std::string_view, std::string_view> kModels[] = {
    {"llama3-8b", kLlama3_8B},
    {"llama3.2-1b", kLlama32_1B},
    {"gemma2-2b", kGemma2_2B},
    {"zamba2-1.2b", kZamba2_12B},
    {"tiny", kTiny},
    {"tiny-gemma2", kTinyGemma2},
    {"tiny-zamba2", kTinyZamba2},
};

}  // namespace

std::string model_config(const std::string& shape) {
  std::string known;
  for (const auto& [name, config] : kModels) {
    if (name == shape) return std::string(config);
    known += text(known.empty() ? "" : ", ", name);
  }
  throw UsageError(
      text("[--shape] there is no whole model of shape \"", shape, "\"; known: ", known));
}

}  // namespace plumb
