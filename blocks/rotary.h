// Rotary position embeddings: frequencies, the table of cos and sin, and the rotation.
#pragma once

#include "blocks/catalog.h"

namespace plumb::blocks {

// Inverse frequencies of rotary position embeddings and the factor that multiplies cos and sin.
// HF: modeling_rope_utils.py; YaRN arXiv 2309.00071, LongRoPE arXiv 2402.13753.
struct RotaryFrequencies {
  std::vector<double> inv_freq;  // dim / 2
  double attention_scaling = 1;

  // type: default, linear, dynamic, llama3, yarn, longrope; in float64.
  static RotaryFrequencies compute(const Params& params);
};

RotaryStyle read_rotary_style(const Params& params);

void run_rotary_frequencies(const BlockCall& call);
void run_rotary_table(const BlockCall& call);
void run_rotary(const BlockCall& call);

}  // namespace plumb::blocks
