// Norms, projections, rotary embeddings, logits and single operations.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "harness/judge/conformance.h"
#include "harness/referee/feature_finder.h"

namespace plumb::harness {
namespace {

constexpr double kShareBeyondKnee = 0.01;

// Without each row's mean.
void centre(NormRows& rows) {
  const auto width = static_cast<std::ptrdiff_t>(rows.width);
  for (auto row = rows.x.begin(); width > 0 && rows.x.end() - row >= width; row += width) {
    const double mean = std::accumulate(row, row + width, 0.0) / static_cast<double>(width);
    for (auto x = row; x != row + width; ++x) *x -= mean;
  }
}

}  // namespace

void FeatureFinder::norm() {
  const double offset = has("weight_offset") ? number("weight_offset") : 0;
  seen("weight", !all_equal(weight("weight"), 1 - offset));
  if (offset != 0) seen("weight_offset", true);
  if (checkpoint_.weights.count("bias")) seen("bias", !all_equal(weight("bias"), 0));
  if (checkpoint_.block == "rms_norm" && size_of(recording_.dtype()) == 2) {
    seen("rounding_" + checkpoint_.params.string("rounding") + "_weight", true);
  }
  NormRows rows;
  const Tensor x = input("x");
  rows.width = x.dim(-1);
  rows.alike = alike_in_row(x);
  rows.rounds_before = has("rounding") && checkpoint_.params.string("rounding") == "before";
  for (int64_t i = 0; i < x.numel(); ++i) rows.x.push_back(at(x, i));
  if (checkpoint_.block == "layer_norm") centre(rows);
  const Tensor w = weight("weight");
  for (int64_t i = 0; i < w.numel(); ++i) rows.weight.push_back(offset + at(w, i));
  eps(rows);
}

void FeatureFinder::biases() {
  for (const auto& [name, key] : checkpoint_.weights) {
    if (name == "bias" || name.ends_with(".bias")) {
      seen("bias", !all_equal(recording_.read(key), 0));
      return;
    }
  }
}

void FeatureFinder::function() { seen(checkpoint_.params.string("function"), true); }

void FeatureFinder::embedding() {
  const double scale = number("scale");
  if (scale == 1) return;
  const double exact = std::sqrt(static_cast<double>(weight("weight").dim(1)));
  seen("scale", true);
  seen("scale_rounding", scale != exact);
}

void FeatureFinder::frequencies() { seen("rope_" + checkpoint_.params.string("type"), true); }

void FeatureFinder::table() {
  seen("position", !all_equal(input("positions"), 0));
  if (number("attention_scaling") != 1) seen("attention_scaling", true);
}

void FeatureFinder::rotary() {
  seen("rotary_" + checkpoint_.params.string("style"), !all_equal(input("sin"), 0));
  if (shape("cos")[-1] < shape("q")[-1]) seen("partial_rotary", true);
}

void FeatureFinder::softcap_block() {
  const Tensor x = input("x");
  seen("softcap", share_beyond(x, kKnee * number("cap")) >= kShareBeyondKnee);
}

void FeatureFinder::lm_head() {
  biases();
  const Tensor logits = recording_.read(output_ref("out").tensor);
  if (const auto cap = checkpoint_.params.number_or_null("softcap")) {
    seen("softcap", share_beyond(logits, kKneeAfterCap * *cap) >= kShareBeyondKnee);
  }
  const int64_t keep = checkpoint_.params.integer("logits_to_keep");
  if (keep > 0) seen("logits_to_keep", keep < shape("hidden")[1]);
}

void FeatureFinder::concat() { axis(checkpoint_.params.integer("axis"), shape("a").rank()); }

void FeatureFinder::slice() {
  axis(checkpoint_.params.integer("axis"), shape("x").rank());
  seen("offset", checkpoint_.params.integer("begin") > 0);
}

void FeatureFinder::permute() {
  const std::vector<double>& axes = checkpoint_.params.numbers("axes");
  const auto last = static_cast<double>(axes.size() - 1);
  seen(axes.back() == last ? "last_axis_stays" : "last_axis_moves", true);
}

void FeatureFinder::product_of_two() { seen("broadcast", !(shape("a") == shape("b"))); }

void FeatureFinder::mask_fill() {
  seen("mask", !all_equal(input("mask"), 0) && !all_equal(input("mask"), 1));
  seen("broadcast", !(shape("x") == shape("mask")));
  if (std::isinf(number("value"))) seen("infinite", true);
}

void FeatureFinder::position_ids() {
  if (checkpoint_.inputs.count("token_valid")) padding("token_valid");
  else seen("offset", checkpoint_.params.integer("offset") > 0);
}

void FeatureFinder::conv1d() {
  if (checkpoint_.inputs.count("bias")) seen("bias", !all_equal(input("bias"), 0));
  if (checkpoint_.params.integer("padding") > 0) seen("padding", true);
}

void FeatureFinder::scale_block() {
  seen(checkpoint_.params.string("operation"), number("factor") != 1);
}

}  // namespace plumb::harness
