// Zamba2. HF: modeling_zamba2.py.
//   x = x0 = E[ids]
//   per layer: x += mamba(norm(x + t)); t = 0, or in a hybrid layer linear(block(x ++ x0))
//   logits = head(norm(x))
// Hybrid layers alternate between num_mem_blocks shared blocks; a block is stored under the first
// layer that uses it, with an adapter for every layer that does. Scores are scaled by
// (head_dim / 2)^-1/2.
#include "blocks/models/zamba2.h"

#include <cmath>
#include <variant>

#include "blocks/models/zamba2_sizes.h"
#include "blocks/zamba2.h"
#include "kernels/core/error.h"

namespace plumb::blocks {
namespace {

constexpr double kGatedNormEps = 1e-5;  // whatever rms_norm_eps is

LowRankAdapter load_adapter(const Weights& weights, int64_t rows, int64_t columns, int64_t rank) {
  return {load_linear(weights / "0", rank, columns, false),
          load_linear(weights / "1", rows, rank, false)};
}

Attention load_shared_attention(const Weights& w, const Zamba2Sizes& s, const std::string& call) {
  const int64_t q = s.shared.heads * s.shared.head_dim, kv = s.shared.kv_heads * s.shared.head_dim;
  const int64_t wide = 2 * s.shared.hidden;
  Attention a;
  a.q_proj = load_linear(w / "q_proj", q, wide, false);
  a.k_proj = load_linear(w / "k_proj", kv, wide, false);
  a.v_proj = load_linear(w / "v_proj", kv, wide, false);
  a.o_proj = load_linear(w / "o_proj", s.shared.hidden, q, false);
  if (s.attention_adapters) {
    const auto adapter = [&](const char* list, int64_t rows) {
      return load_adapter(w / list / call, rows, wide, s.adapter_rank);
    };
    a.q_adapter = adapter("linear_q_adapter_list", q);
    a.k_adapter = adapter("linear_k_adapter_list", kv);
    a.v_adapter = adapter("linear_v_adapter_list", kv);
  }
  a.rotary = s.rotary;
  a.head_dim = s.shared.head_dim;
  set_attention(a, 1 / std::sqrt(static_cast<double>(s.shared.head_dim) / 2), {}, {});
  return a;
}

SharedTransformer load_shared(const Weights& w, const Zamba2Sizes& s, const std::string& call) {
  const int64_t width = s.shared.hidden, pair = 2 * s.shared.intermediate;
  const Weights mlp = w / "feed_forward";
  return {load_norm(w / "input_layernorm", 2 * width, s.norm),
          load_norm(w / "pre_ff_layernorm", width, s.norm),
          load_shared_attention(w / "self_attn", s, call),
          {load_linear(mlp / "gate_up_proj", pair, width, s.bias),
           {},
           load_linear(mlp / "down_proj", width, s.shared.intermediate, s.bias),
           s.function,
           load_adapter(mlp / "gate_up_proj_adapter_list" / call, pair, width, s.adapter_rank)}};
}

Mamba2Mixer load_mixer(const Weights& w, const Zamba2Sizes& s) {
  const int64_t inner = s.inner(), mixed = s.mixed(), width = s.shared.hidden;
  const auto per_head = [&](const char* name) { return w.shaped(name, {s.mamba_heads}); };
  Mamba2Mixer m;
  m.in_proj = load_linear(w / "in_proj", inner + mixed + s.mamba_heads, width, s.bias);
  m.out_proj = load_linear(w / "out_proj", width, inner, s.bias);
  m.conv.weight = (w / "conv1d").shaped("weight", {mixed, 1, s.taps});
  m.conv.bias = (w / "conv1d").shaped("bias", {mixed});
  m.scan = {per_head("A_log"), per_head("D"), per_head("dt_bias"), s.scan};
  m.norm = {(w / "norm").shaped("weight", {inner}), {kGatedNormEps, inner / s.groups}};
  m.heads = s.mamba_heads;
  m.head_dim = s.mamba_head_dim;
  m.groups = s.groups;
  m.columns = s.columns;
  return m;
}

MambaLayer load_mamba_layer(const Weights& w, const Zamba2Sizes& s) {
  return {load_norm(w / "input_layernorm", s.shared.hidden, s.norm), load_mixer(w / "mamba", s)};
}

// Where nothing is tied, a layer's transformer is its own, with the adapters of all calls of its
// block; those of other calls are there and never used.
void take_idle_adapters(const Weights& w, const Zamba2Sizes& s, size_t call) {
  const auto blocks = static_cast<size_t>(s.blocks);
  for (size_t other = call % blocks; other < s.hybrid_layers.size(); other += blocks) {
    if (other != call) load_shared(w, s, std::to_string(other));
  }
}

// A file may hold a shared block once more under every further layer that uses it.
void tie_blocks(const Weights& weights, const Zamba2Sizes& s) {
  const auto prefix = [&](size_t call) {
    return text("model.layers.", s.hybrid_layers[call], ".shared_transformer.");
  };
  for (size_t call = static_cast<size_t>(s.blocks); call < s.hybrid_layers.size(); ++call) {
    const std::string first = prefix(call % static_cast<size_t>(s.blocks));
    for (const auto& [name, shape] : weights.asked()) {
      if (name.compare(0, first.size(), first) != 0) continue;
      weights.tie(prefix(call) + name.substr(first.size()), name);
    }
  }
}

struct Zamba2 final : Decoder {
  std::vector<std::variant<MambaLayer, HybridLayer>> layers;

  Zamba2(const Weights& weights, const Config& config);

 protected:
  void add_buffers(Device& device, Sequence& sequence) const override;
  void run_layers(Context& ctx, const Tensor& hidden, const Tensor& cos, const Tensor& sin,
                  Sequence& sequence) const override;
};

Zamba2::Zamba2(const Weights& weights, const Config& config) {
  const Zamba2Sizes s = Zamba2Sizes::read(config);
  load_ends(weights, config, s.shared, s.tied);
  norm = load_norm(weights / "model" / "final_layernorm", s.shared.hidden, s.norm);
  norm_path = "model.final_layernorm";
  const Weights all = weights / "model" / "layers";
  size_t call = 0;  // of shared blocks
  for (int64_t i = 0; i < sizes.layers; ++i) {
    const Weights w = all / std::to_string(i);
    const std::vector<int64_t>& hybrid = s.hybrid_layers;
    if (call == hybrid.size() || hybrid[call] != i) {
      layers.emplace_back(load_mamba_layer(w, s));
      continue;
    }
    const int64_t owner = s.tied ? hybrid[call % static_cast<size_t>(s.blocks)] : i;
    const Weights shared = all / std::to_string(owner) / "shared_transformer";
    if (!s.tied) take_idle_adapters(shared, s, call);
    layers.emplace_back(HybridLayer{load_shared(shared, s, std::to_string(call)),
                                    load_linear(w / "linear", sizes.hidden, sizes.hidden, false),
                                    load_mamba_layer(w / "mamba_decoder", s)});
    ++call;
  }
  if (s.tied) tie_blocks(weights, s);
}

void Zamba2::add_buffers(Device& device, Sequence& sequence) const {
  for (const auto& layer : layers) {
    const auto* hybrid = std::get_if<HybridLayer>(&layer);
    if (hybrid) {
      sequence.caches.emplace_back(device, dtype(), sequence.batch, sizes.kv_heads, sizes.head_dim,
                                   sequence.max_length, std::nullopt, sequence.position,
                                   sequence.kind);
    }
    const MambaLayer& mamba = hybrid ? hybrid->mamba : std::get<MambaLayer>(layer);
    sequence.states.emplace_back(device, dtype(), sequence.batch, mamba.mixer);
  }
}

void Zamba2::run_layers(Context& ctx, const Tensor& hidden, const Tensor& cos, const Tensor& sin,
                        Sequence& sequence) const {
  const int64_t tokens = hidden.dim(1);
  const Tensor original = ctx.take(hidden.dtype(), hidden.shape());
  ctx.ops.copy(original, hidden);
  Tensor valid;  // of these tokens; what is generated is never padding
  if (sequence.token_valid.defined() && tokens > 1) {
    valid = sequence.token_valid.slice(1, sequence.length, sequence.length + tokens);
  }
  size_t call = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const Part part(ctx, "model.layers", static_cast<int64_t>(i));
    const MambaState state = sequence.states[i].next(tokens);
    if (const auto* hybrid = std::get_if<HybridLayer>(&layers[i])) {
      KvBuffer& cache = sequence.caches[call++];
      (*hybrid)(ctx, hidden, hidden, original, cos, sin, valid,
                cache.next(tokens, sequence.token_valid), state);
      cache.show(ctx, "shared_transformer.self_attn:kv_cache");
    } else {
      std::get<MambaLayer>(layers[i])(ctx, hidden, hidden, {}, valid, state);
    }
  }
}

}  // namespace

std::unique_ptr<CausalLm> load_zamba2(const Weights& weights, const Config& config) {
  return std::make_unique<Zamba2>(weights, config);
}

}  // namespace plumb::blocks
