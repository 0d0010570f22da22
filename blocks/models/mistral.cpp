// Mistral: LLaMA whose layers all see `sliding_window` tokens. HF: modeling_mistral.py.
#include "blocks/models/mistral.h"

#include "blocks/models/llama.h"

namespace plumb::blocks {

std::unique_ptr<CausalLm> load_mistral(const Weights& weights, const Config& config) {
  constexpr int64_t kDefaultWindow = 4096;
  const DecoderSizes sizes = DecoderSizes::read(config);
  const auto window = config.window_or_none("sliding_window", kDefaultWindow);
  LlamaVariant variant;
  variant.windows.assign(static_cast<size_t>(sizes.layers), window);
  return load_llama_like(weights, config, sizes, variant);
}

}  // namespace plumb::blocks
