// The published sizes of the models that are measured (fixtures/schema/sizes.json).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/ops/ops.h"

namespace plumb::harness {

// A Mamba2 mixer: heads x head_dim channels, groups of b and c with `state` columns.
struct BenchMamba {
  int64_t heads, head_dim, groups, state, chunk_size;
  static constexpr int64_t kConvWidth = 4;
  int64_t inner() const { return heads * head_dim; }
  int64_t mixed() const { return inner() + 2 * groups * state; }  // channels of the convolution
};

struct BenchShape {
  std::string name;
  std::string config;  // the config.json of the whole model: what it says about the computation
  int64_t hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, intermediate = 0, vocab = 0;
  Activation activation = Activation::silu;
  bool gemma = false;  // sandwich norms, 1 + weight after the cast, scaled embedding
  std::optional<double> attention_softcap = {}, final_softcap = {};
  std::optional<int64_t> window = {};  // of the layers that slide
  std::optional<BenchMamba> mamba = {};
};

const std::vector<BenchShape>& bench_shapes();
// Throws UsageError naming the known ones.
const BenchShape& find_bench_shape(const std::string& name);

}  // namespace plumb::harness
