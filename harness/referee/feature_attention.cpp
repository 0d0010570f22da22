// Masks, attention and its caches.
#include <algorithm>
#include <cmath>

#include "blocks/kv_cache.h"
#include "harness/referee/feature_finder.h"

namespace plumb::harness {

void FeatureFinder::cache() {
  const int64_t total = recording_.output_shape(output_ref("keys"))[2];
  seen("append", checkpoint_.inputs.count("keys_before") > 0);
  if (const auto window = checkpoint_.params.integer_or_null("window")) {
    seen("eviction", total > *window - 1);
  }
}

void FeatureFinder::static_cache() { buffers(checkpoint_.params, shape("k")[2]); }

void FeatureFinder::buffers(const blocks::Params& p, int64_t tokens) {
  const int64_t slots = p.integer("max_length"), before = p.integer("seen");
  const int64_t after = before + tokens;
  seen("append", before > 0);
  if (after < slots) seen("unused_slots", true);
  if (p.integer_or_null("window")) {
    seen("sliding", true);
    if (after > slots) seen(before < slots ? "overflow" : "wrap_around", true);
  }
}

bool FeatureFinder::has_keys(int64_t first, int64_t end, int64_t keys) const {
  if (!checkpoint_.inputs.count("key_valid")) return first < std::min(end, keys);
  const Tensor valid = input("key_valid");
  for (int64_t i = 0; i < valid.numel(); ++i) {
    if (i % keys >= first && i % keys < end && at(valid, i) != 0) return true;
  }
  return false;
}

void FeatureFinder::mask(const blocks::Params& p, int64_t queries, int64_t keys) {
  if (checkpoint_.inputs.count("mask")) {
    seen("explicit_mask", true);
    return;
  }
  const int64_t first_query = p.integer("query_offset"), first_key = p.integer("key_offset");
  if (p.boolean("causal")) {
    seen("causal", has_keys(first_query - first_key + 1, keys, keys));
    if (queries > 1 && first_query > first_key) seen("causal_offset", true);
  }
  if (const auto window = p.integer_or_null("window")) {
    const int64_t farthest = first_query + queries - 1 - first_key;  // first key from last query
    const bool exceeded = farthest >= *window;
    // The first key is the last one that the window lets in: a shorter window would show.
    const bool filled = *window > 1 && farthest == *window - 1 && has_keys(0, 1, keys);
    seen("window", exceeded || filled);
    seen("longer_window", exceeded);
  }
  if (!checkpoint_.inputs.count("key_valid")) return;
  const Tensor valid = input("key_valid");
  seen("padding", !all_equal(valid, 1));
  if (p.string("fully_masked") != "excluded" && p.boolean("causal")) {
    // The first query sees only keys up to its own slot.
    const int64_t visible = std::min(first_query - first_key + 1, keys);
    for (int64_t b = 0; b < valid.dim(0); ++b) {
      bool any = false;
      for (int64_t s = 0; s < visible; ++s) any = any || at(valid, b * keys + s) != 0;
      if (!any) return seen("fully_masked_" + p.string("fully_masked"), true);
    }
  }
}

void FeatureFinder::attention(const blocks::Params& p, int64_t queries, int64_t keys, int64_t heads,
                              int64_t kv_heads) {
  mask(p, queries, keys);
  if (heads != kv_heads) seen(kv_heads == 1 ? "mqa" : "gqa", true);
  seen("scale", keys > 1);
  if (const auto cap = p.number_or_null("softcap")) {
    seen("softcap", sees_softcap(p.number("max_abs_score"), *cap));
  }
}

// Alone, attention shows a change of its largest score by a few roundings; a layer adds its result
// to others and shows a cap whose knee is reached.
bool FeatureFinder::sees_softcap(double max_abs_score, double cap) const {
  if (max_abs_score > kKneeAfterCap * cap) return true;
  if (checkpoint_.block != "sdpa" && checkpoint_.block != "attention") return false;
  const double before = cap * std::atanh(max_abs_score / cap);
  const double roundings = size_of(dtype_) == 2 ? 16 : 1000;
  return before - max_abs_score > roundings * unit_roundoff(dtype_);
}

void FeatureFinder::sdpa() {
  attention(checkpoint_.params, shape("q")[2], shape("k")[2], shape("q")[1], shape("k")[1]);
}

void FeatureFinder::attention_block(const blocks::Params& p, const std::string& prefix) {
  const int64_t queries = shape("hidden")[1], head_dim = p.integer("head_dim");
  const int64_t past = checkpoint_.inputs.count("keys_before") ? shape("keys_before")[2] : 0;
  int64_t keys = past + queries;
  if (!p.is_null("cache") && p.object("cache").string("kind") == "static") {
    buffers(p.object("cache"), queries);
    keys = blocks::StaticKvCache::load(p.object("cache")).returned(queries);
  }
  const auto heads = [&](const std::string& projection, int axis) {
    if (p.has("layouts") && p.object("layouts").has(projection)) {
      const std::vector<double>& shape = p.object("layouts").object(projection).numbers("shape");
      p.expect(shape.size() == 2, "shape of ", projection, " is not that of a matrix");
      return static_cast<int64_t>(shape[static_cast<size_t>(axis)]) / head_dim;
    }
    const std::string name = prefix + projection + ".weight";
    const bool pruned = checkpoint_.weights.contains(name + "_orig");
    return weight_shape(pruned ? name + "_orig" : name)[axis] / head_dim;
  };
  const int64_t query_heads = heads("o_proj", 1);
  const auto begins = checkpoint_.weights.lower_bound(prefix + "qkv_proj.");
  const bool packed =
      begins != checkpoint_.weights.end() && begins->first.starts_with(prefix + "qkv_proj.");
  attention(p, queries, keys, query_heads,
            packed ? (heads("qkv_proj", 0) - query_heads) / 2 : heads("k_proj", 0));
  biases();
}

void FeatureFinder::adapters(const blocks::Params& p) {
  const blocks::Params& attention = p.has("attention") ? p.object("attention") : p;
  if (attention.boolean_or("adapters", false)) seen("adapters", true);
  if (!attention.boolean_or("rotary", true)) seen("no_rotary", true);
}

void FeatureFinder::shared(const blocks::Params& p) {
  adapters(p);
  if (p.integer("call") > 0) seen("later_call", true);
  if (p.integer("block") > 0) seen("second_block", true);
}

void FeatureFinder::causal_mask() {
  mask(checkpoint_.params, checkpoint_.params.integer("queries"),
       checkpoint_.params.integer("keys"));
}

}  // namespace plumb::harness
