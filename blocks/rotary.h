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

// How queries and keys are rotated, each product and sum rounded to the storage dtype; or, as in
// CohereAttention, in float32 with one rounding of the result.
struct Rotation {
  RotaryStyle style = RotaryStyle::half;
  bool in_float32 = false;
  bool table_of_pairs = false;  // an operand's columns 2i and 2i + 1 are pair i's, not i, i + r/2

  static Rotation load(const Params& params);  // style, [float32, table]
  // q, k [B, H, T, D], cos, sin [B|1, T, r], columns i and i + r/2 for pair i. out_q may be q.
  void operator()(Context& ctx, const Tensor& out_q, const Tensor& q, const Tensor& out_k,
                  const Tensor& k, const Tensor& cos, const Tensor& sin) const;
  // A table that is an operand, with the columns that the rotation takes.
  Tensor in_halves(Context& ctx, const Tensor& table) const;
};

void run_rotary_frequencies(const BlockCall& call);
void run_rotary_table(const BlockCall& call);
void run_rotary(const BlockCall& call);

}  // namespace plumb::blocks
