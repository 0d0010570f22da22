#include "harness/bench/shapes.h"

#include <nlohmann/json.hpp>

#include "kernels/core/error.h"

namespace plumb::harness {

extern const char kModelSizes[];  // fixtures/schema/sizes.json

namespace {

using Json = nlohmann::ordered_json;

template <class T>
std::optional<T> optional(const Json& config, const char* key) {
  return config.contains(key) ? std::optional(config[key].get<T>()) : std::nullopt;
}

BenchShape shape_of(const std::string& name, const Json& config) {
  BenchShape out;
  out.name = name;
  out.config = config.dump();
  config.at("hidden_size").get_to(out.hidden);
  config.at("num_attention_heads").get_to(out.heads);
  config.at("num_key_value_heads").get_to(out.kv_heads);
  config.at("intermediate_size").get_to(out.intermediate);
  config.at("vocab_size").get_to(out.vocab);
  out.attention_softcap = optional<double>(config, "attn_logit_softcapping");
  out.final_softcap = optional<double>(config, "final_logit_softcapping");
  out.window = optional<int64_t>(config, "sliding_window");
  out.gemma = config.at("model_type") == "gemma2";
  if (out.gemma) out.activation = Activation::gelu_tanh;
  if (config.at("model_type") == "zamba2") {
    const int64_t inner = config.at("mamba_expand").get<int64_t>() * out.hidden;
    const int64_t heads = config.at("n_mamba_heads");
    out.activation = Activation::gelu;
    out.mamba = BenchMamba{heads, inner / heads, config.at("mamba_ngroups"),
                           config.at("mamba_d_state"), config.at("chunk_size")};
  }
  // Zamba2 attends to hidden states and embeddings side by side.
  out.head_dim = out.mamba ? 2 * out.hidden / out.heads : config.at("head_dim").get<int64_t>();
  return out;
}

}  // namespace

const std::vector<BenchShape>& bench_shapes() {
  static const std::vector<BenchShape> shapes = [] {
    const Json sizes = Json::parse(kModelSizes);
    std::vector<BenchShape> out;
    for (const auto& [name, config] : sizes.items()) {
      out.push_back(shape_of(name, config));
    }
    return out;
  }();
  return shapes;
}

const BenchShape& find_bench_shape(const std::string& name) {
  std::string known;
  for (const BenchShape& shape : bench_shapes()) {
    if (shape.name == name) return shape;
    known += text(known.empty() ? "" : ", ", shape.name);
  }
  throw UsageError(text("[--shape] unknown shape \"", name, "\"; known: ", known));
}

}  // namespace plumb::harness
