// Qwen2: LLaMA with a bias on q, k and v, and a window in some layers. HF: modeling_qwen2.py.
#include "blocks/models/qwen2.h"

#include "blocks/models/llama.h"

namespace plumb::blocks {

std::unique_ptr<CausalLm> load_qwen2(const Weights& weights, const Config& config) {
  constexpr int64_t kDefaultWindow = 4096;
  constexpr double kDefaultFullLayers = 28;
  const DecoderSizes sizes = DecoderSizes::read(config);
  auto window = config.window_or_none("sliding_window", kDefaultWindow);
  if (!config.boolean_or("use_sliding_window", false)) window.reset();
  // Not a size: with 0 every layer slides.
  const double full_layers = config.number_or("max_window_layers", kDefaultFullLayers);
  const std::vector<std::string> types = config.layer_types(sizes.layers);

  LlamaVariant variant{.qkv_bias = true};
  for (int64_t i = 0; i < sizes.layers; ++i) {
    const bool slides = types.empty() ? static_cast<double>(i) >= full_layers
                                      : types[static_cast<size_t>(i)] == "sliding_attention";
    variant.windows.push_back(slides ? window : std::nullopt);
  }
  return load_llama_like(weights, config, sizes, variant);
}

}  // namespace plumb::blocks
