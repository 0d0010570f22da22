#include "blocks/kv_cache.h"

#include "kernels/core/error.h"

namespace plumb::blocks {

KvCache KvCache::load(const Params& params) {
  const std::string& kind = params.string("kind");
  if (kind != "dynamic") {
    throw Unsupported(text(params.where(), ": cache kind \"", kind, "\"; known: dynamic"));
  }
  const KvCache cache{params.integer_or_null("window")};
  if (cache.window && *cache.window < 2) {
    // HF keeps everything for a window of 1 (a slice of [-0:]): nothing to imitate.
    throw Unsupported(text(params.where(), ": a sliding cache with window ", *cache.window));
  }
  return cache;
}

void KvCache::append(Context& ctx, const Tensor& all, const Tensor& before,
                     const Tensor& fresh) const {
  const int64_t past = before.defined() ? before.dim(2) : 0;
  require(all.rank() == 4 && fresh.rank() == 4 && all.dim(2) == past + fresh.dim(2), "kv_cache",
          "returned keys have shape ", all.shape(), ", stored ", past, " + new ", fresh.shape());
  if (past > 0) ctx.ops.copy(all.slice(2, 0, past), before);
  ctx.ops.copy(all.slice(2, past, past + fresh.dim(2)), fresh);
}

void KvCache::keep(Context& ctx, const Tensor& after, const Tensor& all) const {
  const int64_t total = all.dim(2), stays = kept(total);
  require(after.rank() == 4 && after.dim(2) == stays, "kv_cache", "the state after has shape ",
          after.shape(), ", expected ", stays, " of ", total, " slots");
  ctx.ops.copy(after, all.slice(2, total - stays, total));
}

StaticKvCache StaticKvCache::load(const Params& params) {
  const std::optional<int64_t> window = params.integer_or_null("window");
  const StaticKvCache cache{params.integer("max_length"), window.has_value(),
                            params.integer("seen")};
  if (cache.slots < 1 || cache.seen < 0 || window.value_or(cache.slots) != cache.slots) {
    throw BadInput(text(params.where(), ": a static cache with max_length ", cache.slots,
                        ", window ", window.value_or(cache.slots), " and ", cache.seen,
                        " tokens seen; max_length is at least 1, a window is max_length"));
  }
  return cache;
}

int64_t StaticKvCache::returned(int64_t tokens) const {
  if (fits(tokens)) return slots;
  require(sliding, "kv_cache", "a static cache of ", slots, " slots has seen ", seen,
          " tokens and is given ", tokens, " more");
  return std::min(seen, slots) - oldest() + tokens;
}

void StaticKvCache::update(Context& ctx, const Tensor& all, const Tensor& after,
                           const Tensor& before, const Tensor& fresh) const {
  const int64_t tokens = fresh.dim(2), total = returned(tokens);
  require(before.dim(2) == slots && after.dim(2) == slots && all.dim(2) == total, "kv_cache",
          "the states have ", before.dim(2), " and ", after.dim(2), " slots, expected ", slots,
          "; attention sees ", all.dim(2), ", expected ", total);
  Ops& ops = ctx.ops;
  if (fits(tokens)) {
    if (after.raw() != before.raw()) ops.copy(after, before);
    ops.copy(after.slice(2, seen, seen + tokens), fresh);
    if (all.raw() != after.raw()) ops.copy(all, after);
    return;
  }
  const int64_t kept = total - tokens;
  if (kept > 0) ops.copy(all.slice(2, 0, kept), before.slice(2, oldest(), oldest() + kept));
  ops.copy(all.slice(2, kept, total), fresh);
  ops.copy(after, all.slice(2, total - slots, total));
}

void run_kv_cache(const BlockCall& call) {
  const KvCache cache = KvCache::load(call.params);
  const auto update = [&](const std::string& all, const std::string& fresh) {
    cache.append(call.ctx, call.output(all), call.optional_input(all + "_before"),
                 call.input(fresh));
    cache.keep(call.ctx, call.output(all + "_after"), call.output(all));
  };
  update("keys", "k");
  update("values", "v");
}

void run_static_kv_cache(const BlockCall& call) {
  const StaticKvCache cache = StaticKvCache::load(call.params);
  const auto update = [&](const std::string& all, const std::string& fresh) {
    cache.update(call.ctx, call.output(all), call.output(all + "_after"),
                 call.input(all + "_before"), call.input(fresh));
  };
  update("keys", "k");
  update("values", "v");
}

}  // namespace plumb::blocks
