// Mamba2: convolution, scan, gated norm, mixer and their states.
#include <algorithm>
#include <cmath>

#include "harness/referee/feature_finder.h"

namespace plumb::harness {

void FeatureFinder::conv_cache() {
  carried("conv_state", "state_before", "state_after");
  const bool start = checkpoint_.inputs.count("state_before") == 0;
  if (start && shape("x")[2] < checkpoint_.params.integer("kernel")) seen("zeros_in_front", true);
}

void FeatureFinder::conv() {
  const std::string& key = weight_key("weight");
  const int64_t width = recording_.tensor_info(key).shape[2], tokens = shape("x")[1];
  if (checkpoint_.weights.count("bias")) seen("bias", !all_equal(weight("bias"), 0));
  seen("activation", true);
  carried("conv_state", "state_before", "state_after");
  if (!checkpoint_.inputs.count("state_before")) seen("start_of_sequence", true);
  if (tokens < width) seen("short_sequence", true);
  padding("token_valid");
}

void FeatureFinder::scan() {
  const blocks::Params& p = checkpoint_.params;
  const int64_t tokens = shape("x")[1];
  seen(p.string("form") + "_form", true);
  carried("ssm_state", "state_before", "state_after");
  if (p.string("form") == "chunk") {
    seen("several_chunks", tokens > p.integer("chunk_size"));
    clamp(p);
  }
  if (shape("b")[2] > 1) seen("groups", shape("b")[2] < shape("x")[2]);
  seen("skip", !all_equal(weight("D"), 0));
}

void FeatureFinder::gated_norm() {
  seen("weight", !all_equal(weight("weight"), 1));
  seen("gate", true);
  const int64_t channels = shape("x")[-1], width = checkpoint_.params.integer("group_size");
  if (channels != width) seen("groups", true);
  NormRows rows;
  rows.width = width;
  rows.rounds_before = true;
  const Tensor x = input("x"), gate = input("gate"), w = weight("weight");
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double g = at(gate, i);
    rows.x.push_back(at(x, i) * g / (1 + std::exp(-g)));
  }
  for (int64_t i = 0; i < w.numel(); ++i) rows.weight.push_back(at(w, i));
  eps(rows);
}

void FeatureFinder::mixer(const blocks::Params& p) {
  const int64_t tokens = shape("hidden")[1];
  seen(p.string("form") + "_form", true);
  carried("ssm_state", "ssm_before", "ssm_after");
  if (p.string("form") == "chunk") seen("several_chunks", tokens > p.integer("chunk_size"));
  if (p.integer("groups") > 1) seen("groups", true);
  padding("token_valid");
}

void FeatureFinder::clamp(const blocks::Params& p) {
  const auto least = p.number_or_null("dt_min");
  if (!least) return;
  const Tensor dt = input("dt"), bias = weight("dt_bias");
  const int64_t heads = bias.numel();
  bool clamped = false;
  for (int64_t i = 0; i < dt.numel() && !clamped; ++i) {
    clamped = std::log1p(std::exp(at(dt, i) + at(bias, i % heads))) < *least;
  }
  seen("clamp", clamped);
}

}  // namespace plumb::harness
