// What the cases of a shape have in common: operands and parameters.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "harness/bench/cases.h"

namespace plumb::harness {

// Makes the operands of one shape, batch 1.
struct BenchMaker {
  BenchShape shape;
  BenchSizes sizes;

  int64_t past() const { return sizes.context - sizes.tokens; }

  BenchOperand out(const std::string& name, const Shape& s) const {
    return {name, sizes.dtype, s, {}, true};
  }
  BenchOperand in(const std::string& name, const Shape& s, double deviation = 1) const {
    return {name, sizes.dtype, s, {Fill::normal, 0, deviation}};
  }
  // Rows of such a matrix times a vector of normal elements give normal elements.
  BenchOperand weight(const std::string& name, int64_t rows, int64_t columns) const {
    return in(name, {rows, columns}, 1 / std::sqrt(static_cast<double>(columns)));
  }
  BenchOperand norm_weight(const std::string& name) const {
    return {name, sizes.dtype, {shape.hidden}, {Fill::normal, shape.gemma ? 0.0 : 1.0, 0.2}};
  }
  Shape hidden() const { return {1, sizes.tokens, shape.hidden}; }
  Shape heads(int64_t count, int64_t slots) const { return {1, count, slots, shape.head_dim}; }
  Shape scores() const { return {1, shape.heads, sizes.tokens, sizes.context}; }

  RmsNormParams norm() const {
    return shape.gemma ? RmsNormParams{1e-6, 1, WeightRounding::after}
                       : RmsNormParams{1e-5, 0, WeightRounding::before};
  }
  AttentionMask mask() const {
    AttentionMask mask;
    mask.causal = true;
    mask.query_offset = past();
    return mask;
  }
  SdpaParams sdpa() const {
    return {1 / std::sqrt(static_cast<double>(shape.head_dim)), shape.attention_softcap};
  }
};

inline void append(std::vector<BenchOperand>& to, std::vector<BenchOperand> more) {
  for (BenchOperand& operand : more) to.push_back(std::move(operand));
}

// Single operations outside of a decoder layer's blocks.
std::vector<BenchCase> component_cases(const BenchMaker& maker);
// Elementwise ops and reductions, of block "ops", and products of 8 bits, of block "products":
// "all" names neither.
std::vector<BenchCase> op_cases(const BenchMaker& maker);
// MLP, attention and decoder layer.
std::vector<BenchCase> composite_cases(const BenchMaker& maker);
// Convolution, scan, gated norm and mixer of a shape that has them.
std::vector<BenchCase> mamba_cases(const BenchMaker& maker);

}  // namespace plumb::harness
