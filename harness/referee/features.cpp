#include "harness/referee/features.h"

#include <functional>

#include "harness/referee/feature_finder.h"

namespace plumb::harness {
namespace {

struct Row {
  std::string_view block;
  std::function<void(FeatureFinder&, const Checkpoint&)> find;
};

const std::vector<Row>& table() {
  static const std::vector<Row> rows = {
      {"rms_norm", [](FeatureFinder& f, const Checkpoint&) { f.norm(); }},
      {"layer_norm", [](FeatureFinder& f, const Checkpoint&) { f.norm(); }},
      {"linear", [](FeatureFinder& f, const Checkpoint&) { f.biases(); }},
      {"glu_mlp", [](FeatureFinder& f, const Checkpoint&) { f.function(), f.biases(); }},
      {"activation", [](FeatureFinder& f, const Checkpoint&) { f.function(); }},
      {"glu_activation", [](FeatureFinder& f, const Checkpoint&) { f.function(); }},
      {"embedding", [](FeatureFinder& f, const Checkpoint&) { f.embedding(); }},
      {"rotary_frequencies", [](FeatureFinder& f, const Checkpoint&) { f.frequencies(); }},
      {"rotary_table", [](FeatureFinder& f, const Checkpoint&) { f.table(); }},
      {"rotary", [](FeatureFinder& f, const Checkpoint&) { f.rotary(); }},
      {"softcap", [](FeatureFinder& f, const Checkpoint&) { f.softcap_block(); }},
      {"lm_head", [](FeatureFinder& f, const Checkpoint&) { f.lm_head(); }},
      {"kv_cache", [](FeatureFinder& f, const Checkpoint&) { f.cache(); }},
      {"static_kv_cache", [](FeatureFinder& f, const Checkpoint&) { f.static_cache(); }},
      {"conv_cache", [](FeatureFinder& f, const Checkpoint&) { f.conv_cache(); }},
      {"concat", [](FeatureFinder& f, const Checkpoint&) { f.concat(); }},
      {"slice", [](FeatureFinder& f, const Checkpoint&) { f.slice(); }},
      {"permute", [](FeatureFinder& f, const Checkpoint&) { f.permute(); }},
      {"mul", [](FeatureFinder& f, const Checkpoint&) { f.product_of_two(); }},
      {"mask_fill", [](FeatureFinder& f, const Checkpoint&) { f.mask_fill(); }},
      {"position_ids", [](FeatureFinder& f, const Checkpoint&) { f.position_ids(); }},
      {"conv1d", [](FeatureFinder& f, const Checkpoint&) { f.conv1d(); }},
      {"scale", [](FeatureFinder& f, const Checkpoint&) { f.scale_block(); }},
      {"causal_mask", [](FeatureFinder& f, const Checkpoint&) { f.causal_mask(); }},
      {"sdpa", [](FeatureFinder& f, const Checkpoint&) { f.sdpa(); }},
      {"attention",
       [](FeatureFinder& f, const Checkpoint& c) {
         f.attention_block(c.params, "");
         f.adapters(c.params);
       }},
      {"causal_conv1d", [](FeatureFinder& f, const Checkpoint&) { f.conv(); }},
      {"ssd_scan", [](FeatureFinder& f, const Checkpoint&) { f.scan(); }},
      {"gated_rms_norm", [](FeatureFinder& f, const Checkpoint&) { f.gated_norm(); }},
      {"mamba2_mixer", [](FeatureFinder& f, const Checkpoint& c) { f.mixer(c.params); }},
      {"mamba_layer",
       [](FeatureFinder& f, const Checkpoint& c) { f.mixer(c.params.object("mamba")); }},
      {"shared_transformer",
       [](FeatureFinder& f, const Checkpoint& c) {
         f.attention_block(c.params.object("attention"), "self_attn.");
         f.shared(c.params);
       }},
      {"hybrid_layer",
       [](FeatureFinder& f, const Checkpoint& c) {
         f.attention_block(c.params.object("attention"), "shared_transformer.self_attn.");
         f.mixer(c.params.object("mamba"));
         f.shared(c.params);
       }},
      {"decoder_layer",
       [](FeatureFinder& f, const Checkpoint& c) {
         f.attention_block(c.params.object("attention"), "self_attn.");
       }},
  };
  return rows;
}

}  // namespace

Features features_of(const Recording& recording, const Checkpoint& checkpoint) {
  return features_of(recording, checkpoint, recording.dtype());
}

Features features_of(const Recording& recording, const Checkpoint& checkpoint, DType dtype) {
  FeatureFinder finder(recording, checkpoint, dtype);
  for (const Row& row : table()) {
    if (row.block == checkpoint.block) row.find(finder, checkpoint);
  }
  finder.denormals();
  checkpoint.params.rewind();
  return finder.take();
}

}  // namespace plumb::harness
