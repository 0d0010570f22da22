#include "blocks/models/causal_lm.h"
#include "blocks/models/gemma2.h"
#include "blocks/models/llama.h"
#include "blocks/models/mistral.h"
#include "blocks/models/qwen2.h"
#include "blocks/models/zamba2.h"
#include "kernels/core/error.h"

namespace plumb::blocks {

const std::vector<ModelEntry>& model_catalog() {
  static const std::vector<ModelEntry> entries = {
      {"llama", load_llama}, {"gemma2", load_gemma2}, {"mistral", load_mistral},
      {"qwen2", load_qwen2}, {"zamba2", load_zamba2},
  };
  return entries;
}

std::unique_ptr<CausalLm> load_model(const Weights& weights, const Config& config) {
  const std::string type = config.string_or("model_type", "");
  std::string known;
  for (const ModelEntry& entry : model_catalog()) {
    if (entry.model_type != type) {
      known += text(known.empty() ? "" : ", ", entry.model_type);
      continue;
    }
    config.dtype();                 // for who chooses one
    config.ignore("eos_token_id");  // for who generates
    std::unique_ptr<CausalLm> model = entry.load(weights, config);
    config.finish();
    return model;
  }
  throw Unsupported(
      text(config.where(), ": model_type \"", type, "\" is not implemented; known: ", known));
}

Weights expected_weights(const Config& config) {
  const Weights weights = Weights::shapes_only(DType::f32, config.where());
  load_model(weights, config);
  return weights;
}

}  // namespace plumb::blocks
