#include "blocks/kv_cache.h"

#include "kernels/error.h"

namespace plumb {

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

}  // namespace plumb
