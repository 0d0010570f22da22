#include "blocks/attention.h"

#include "kernels/core/error.h"

namespace plumb::blocks {

Attention Attention::load(const Weights& weights, const Params& params) {
  Attention a;
  if (Linear::is_in(weights, "qkv_proj")) {
    a.qkv_proj = Linear::load(weights, params, "qkv_proj");
  } else {
    a.q_proj = Linear::load(weights, params, "q_proj");
    a.k_proj = Linear::load(weights, params, "k_proj");
    a.v_proj = Linear::load(weights, params, "v_proj");
  }
  a.o_proj = Linear::load(weights, params, "o_proj");
  if (params.boolean_or("adapters", false)) {
    const std::string call = text(params.integer("call"));
    a.q_adapter = LowRankAdapter::load(weights / "linear_q_adapter_list" / call);
    a.k_adapter = LowRankAdapter::load(weights / "linear_k_adapter_list" / call);
    a.v_adapter = LowRankAdapter::load(weights / "linear_v_adapter_list" / call);
  }
  params.ignore("call");  // without adapters it names nothing
  if (params.has("qk_norm")) {
    a.q_norm = Norm::load(weights / "q_norm", params.object("qk_norm"));
    a.k_norm = Norm::load(weights / "k_norm", params.object("qk_norm"));
  }
  a.rotary = params.boolean_or("rotary", true);
  a.head_dim = params.integer("head_dim");
  a.rotation = Rotation::load(params);
  a.sdpa = Sdpa::load(params);
  if (!params.is_null("cache")) {
    const Params& cache = params.object("cache");
    if (cache.string("kind") == "static") a.static_cache = StaticKvCache::load(cache);
    else a.cache = KvCache::load(cache);
  }
  for (const Linear* projection : {&a.q_proj, &a.k_proj, &a.v_proj, &a.qkv_proj}) {
    if (!projection->defined()) continue;
    if (a.head_dim <= 0 || projection->rows() % a.head_dim != 0) {
      throw BadInput(text(params.where(), ": head_dim is ", a.head_dim, ", a projection has ",
                          projection->rows(), " rows"));
    }
  }
  return a;
}

Attention::Attended Attention::attend(Context& ctx, const Tensor& k, const Tensor& v,
                                      const KvState& state) const {
  const auto store = [&](const KvSlots& slots) {
    ctx.ops.store_tokens(slots.keys, slots.values, k, v, slots.past, slots.window);
  };
  const int64_t past = state.query_offset, end = past + k.dim(2);
  if (const auto* in_order = std::get_if<KvInOrder>(&state.cache)) {
    const auto& [keys, values] = *in_order;
    ctx.ops.copy_pair(keys.slice(2, past, end), k, values.slice(2, past, end), v);
    return {keys, values, {0, end}};
  }
  if (const auto* step = std::get_if<KvStep>(&state.cache)) {
    store(step->slots);
    return {step->slots.keys, step->slots.values,
            visible_slots(step->slots.past.now, step->slots.window)};
  }
  if (const auto* sliding = std::get_if<KvSliding>(&state.cache)) {
    if (!sliding->stored) {
      const Attended seen = append(ctx, k, v, sliding->before);
      store(sliding->slots);
      return seen;
    }
    store(sliding->slots);
    return {sliding->stored->keys, sliding->stored->values, {0, end}};
  }
  const auto& tensors = std::get<KvTensors>(state.cache);
  if (static_cache) return update_static(ctx, k, v, tensors);
  return cache ? append(ctx, k, v, tensors) : Attended{k, v, {0, k.dim(2)}};
}

Attention::Attended Attention::append(Context& ctx, const Tensor& k, const Tensor& v,
                                      const KvTensors& tensors) const {
  const int64_t past = tensors.keys_before.defined() ? tensors.keys_before.dim(2) : 0;
  const int64_t total = past + k.dim(2);
  const auto append_one = [&](const Tensor& before, const Tensor& fresh, const Tensor& after) {
    const Tensor all = ctx.take(k.dtype(), {k.dim(0), k.dim(1), total, head_dim});
    cache->append(ctx, all, before, fresh);
    if (after.defined()) cache->keep(ctx, after, all);
    return all;
  };
  const Tensor keys = append_one(tensors.keys_before, k, tensors.keys_after);
  const Tensor values = append_one(tensors.values_before, v, tensors.values_after);
  return {keys, values, {past - cache->kept(past), total}};
}

Attention::Attended Attention::update_static(Context& ctx, const Tensor& k, const Tensor& v,
                                             const KvTensors& tensors) const {
  const int64_t tokens = k.dim(2), total = static_cache->returned(tokens);
  const auto scratch = [&](int64_t slots) {
    return ctx.take(k.dtype(), {k.dim(0), k.dim(1), slots, head_dim});
  };
  const auto update = [&](Tensor before, const Tensor& fresh, Tensor after) {
    if (!before.defined()) ctx.ops.fill(before = scratch(static_cache->slots), 0);
    if (!after.defined()) after = scratch(static_cache->slots);
    const Tensor all = scratch(total);
    static_cache->update(ctx, all, after, before, fresh);
    return all;
  };
  return {update(tensors.keys_before, k, tensors.keys_after),
          update(tensors.values_before, v, tensors.values_after),
          {0, static_cache->fits(tokens) ? static_cache->seen + tokens : total}};
}

AttentionMask Attention::mask_of(const KvState& state, int64_t keys) const {
  AttentionMask mask = sdpa.mask;
  if (const auto* step = std::get_if<KvStep>(&state.cache)) {
    mask.causal = false;
    mask.window = step->slots.window;
    mask.position = step->slots.past;
    return mask;
  }
  mask.query_offset += state.query_offset;
  mask.key_offset += state.key_offset;
  if (state.token_valid.defined()) {
    mask.key_valid = state.token_valid.slice(1, mask.key_offset, mask.key_offset + keys);
  }
  return mask;
}

void Attention::add_adapters(Context& ctx, const Tensor& hidden,
                             const std::array<Tensor, 3>& rows) const {
  const std::array adapters{&q_adapter, &k_adapter, &v_adapter};
  constexpr std::array kNames{"linear_q_adapter_list", "linear_k_adapter_list",
                              "linear_v_adapter_list"};
  std::array<Tensor, 3> narrow;
  for (size_t i = 0; i < narrow.size(); ++i) {
    if (*adapters[i]) narrow[i] = (*adapters[i])->narrowed(ctx, hidden);
  }
  for (size_t i = 0; i < narrow.size(); ++i) {
    if (*adapters[i]) (*adapters[i])->add_to(ctx, kNames[i], rows[i], narrow[i]);
  }
}

std::array<Tensor, 3> Attention::project(Context& ctx, const Tensor& hidden) const {
  const int64_t batch = hidden.dim(0), tokens = hidden.dim(1);
  const auto rows_of = [&](const char* name, const Linear& projection) {
    const Tensor flat = ctx.take(hidden.dtype(), {batch, tokens, projection.rows()});
    projection(ctx, flat, hidden);
    ctx.probe(name, "out", flat);
    return flat;
  };
  // [B, T, rows] seen as [B, T, heads, head_dim]
  const auto split = [&](const Tensor& flat) {
    return flat.view({batch, tokens, flat.dim(2) / head_dim, head_dim});
  };
  if (qkv_proj.defined()) {
    const Tensor all = split(rows_of("qkv_proj", qkv_proj));
    const int64_t total = all.dim(2), q = o_proj.columns() / head_dim, k = (total + q) / 2;
    return {all.slice(2, 0, q), all.slice(2, q, k), all.slice(2, k, total)};
  }
  const std::array rows{rows_of("q_proj", q_proj), rows_of("k_proj", k_proj),
                        rows_of("v_proj", v_proj)};
  add_adapters(ctx, hidden, rows);
  return {split(rows[0]), split(rows[1]), split(rows[2])};
}

void Attention::operator()(Context& ctx, const Tensor& out, const Tensor& hidden, const Tensor& cos,
                           const Tensor& sin, const KvState& state) const {
  Arena::Scope scope(ctx.ops.arena());
  const DType dtype = hidden.dtype();
  const int64_t batch = hidden.dim(0), tokens = hidden.dim(1);
  const auto [q_heads, k_heads, v_heads] = project(ctx, hidden);
  const auto normalise = [&](const char* name, const std::optional<Norm>& norm,
                             const Tensor& heads) {
    if (!norm) return;
    (*norm)(ctx, heads, heads);
    ctx.probe(name, "out", heads);
  };
  normalise("q_norm", q_norm, q_heads);
  normalise("k_norm", k_norm, k_heads);
  const Tensor q = q_heads.transpose(1, 2), k = k_heads.transpose(1, 2),
               v = v_heads.transpose(1, 2);
  if (rotary) {
    rotation(ctx, q, q, k, k, cos, sin);
    ctx.probe(":rotary", "q", q);
    ctx.probe(":rotary", "k", k);
  }

  const Attended seen = attend(ctx, k, v, state);
  if (cache || static_cache) {
    ctx.probe(":kv_cache", "keys", seen.k.slice(2, seen.tokens.begin, seen.tokens.end));
    ctx.probe(":kv_cache", "values", seen.v.slice(2, seen.tokens.begin, seen.tokens.end));
  }
  const Tensor context = ctx.take(dtype, {batch, tokens, q.dim(1), head_dim});
  ctx.ops.sdpa(context, q, seen.k, seen.v, mask_of(state, seen.k.dim(2)), sdpa.params);
  ctx.probe(":sdpa", "out", context);
  o_proj(ctx, out, context.view({batch, tokens, q.dim(1) * head_dim}));
  ctx.probe("", "out", out);
}

KvState kv_state(const BlockCall& call) {
  return {KvTensors{call.optional_input("keys_before"), call.optional_input("values_before"),
                    call.optional_output("keys_after"), call.optional_output("values_after")}};
}

Tensor rotary_operand(const BlockCall& call, const Attention& attention, const char* name) {
  if (!attention.rotary) return {};
  return attention.rotation.in_halves(call.ctx, call.input(name));
}

void take_mask_operands(const BlockCall& call, AttentionMask& mask) {
  mask.key_valid = call.optional_input("key_valid");
  mask.explicit_mask = call.optional_input("mask");
}

void run_attention(const BlockCall& call) {
  Arena::Scope scope(call.ctx.ops.arena());
  Attention attention = Attention::load(call.weights, call.params);
  take_mask_operands(call, attention.sdpa.mask);
  attention(call.ctx, call.output("out"), call.input("hidden"),
            rotary_operand(call, attention, "cos"), rotary_operand(call, attention, "sin"),
            kv_state(call));
}

}  // namespace plumb::blocks
