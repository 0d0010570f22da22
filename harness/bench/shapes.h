// The published sizes of the models whose blocks are measured.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops.h"

namespace plumb {

struct BenchShape {
  std::string_view name;
  int64_t hidden, heads, kv_heads, head_dim, intermediate, vocab;
  Activation activation = Activation::silu;
  bool gemma = false;  // sandwich norms, 1 + weight after the cast, scaled embedding
  std::optional<double> attention_softcap = {}, final_softcap = {};
  std::optional<int64_t> window = {};  // of the layers that slide
};

const std::vector<BenchShape>& bench_shapes();
// Throws UsageError naming the known ones.
const BenchShape& find_bench_shape(const std::string& name);

}  // namespace plumb
