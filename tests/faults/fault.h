// The table of named faults: what people get wrong in each block, and what the harness must see.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "blocks/params.h"
#include "tests/faults/faulty_device.h"

namespace plumb::harness::testing {

struct Fault {
  std::string block;  // whose checkpoints must fail
  std::string name;
  Hooks hooks;
  bool narrow_only = false;  // a matter of 16-bit roundings: nothing to see in f32
  // Instead of hooks, for what a block computes on the host: other numbers than recorded. False
  // where the fault does not apply.
  std::function<bool(blocks::Params&)> numbers = {};
  bool growing_cache_only = false;  // its hooks take every copy for one of a cache that grows
};

// All of them, a list per block: its own, then generic ones (generic.h) planted in its ops.
std::vector<std::vector<Fault>> all_faults();
std::vector<Fault> faults_of(const std::string& block);
std::vector<std::vector<Fault>> own_faults();

// tests/faults/replaced.txt: what the faults that were once written for each block are now, a line
// each: block, fault, and the generic fault of an op that does the same, or "stays".
struct ListedFault {
  std::string block, name, by;
};
inline constexpr const char* kStays = "stays";
std::vector<ListedFault> listed_faults();

std::vector<Fault> embedding_faults();
std::vector<Fault> rotary_frequencies_faults();
std::vector<Fault> rotary_table_faults();
std::vector<Fault> rotary_faults();
std::vector<Fault> rms_norm_faults();
std::vector<Fault> layer_norm_faults();
std::vector<Fault> linear_faults();
std::vector<Fault> activation_faults();
std::vector<Fault> glu_activation_faults();
std::vector<Fault> glu_mlp_faults();
std::vector<Fault> softcap_faults();
std::vector<Fault> lm_head_faults();
std::vector<Fault> causal_mask_faults();
std::vector<Fault> sdpa_faults();
std::vector<Fault> kv_cache_faults();
std::vector<Fault> attention_faults();
std::vector<Fault> decoder_layer_faults();
std::vector<Fault> add_faults();
std::vector<Fault> mul_faults();
std::vector<Fault> div_faults();
std::vector<Fault> add_scalar_faults();
std::vector<Fault> concat_faults();
std::vector<Fault> slice_faults();
std::vector<Fault> permute_faults();
std::vector<Fault> cast_faults();
std::vector<Fault> mask_fill_faults();
std::vector<Fault> position_ids_faults();
std::vector<Fault> conv1d_faults();
std::vector<Fault> static_kv_cache_faults();
std::vector<Fault> conv_cache_faults();
std::vector<Fault> ssm_cache_faults();
std::vector<Fault> scale_faults();
std::vector<Fault> repeat_kv_faults();
std::vector<Fault> matmul_faults();
std::vector<Fault> masked_add_faults();
std::vector<Fault> softmax_faults();
std::vector<Fault> low_rank_adapter_faults();
std::vector<Fault> causal_conv1d_faults();
std::vector<Fault> ssd_scan_faults();
std::vector<Fault> gated_rms_norm_faults();
std::vector<Fault> mamba2_mixer_faults();
std::vector<Fault> mamba_layer_faults();
std::vector<Fault> shared_transformer_faults();
std::vector<Fault> hybrid_layer_faults();
// Those of the Mamba2 layer inside another layer.
std::vector<Fault> mamba_faults_of_layer(const char* block);

}  // namespace plumb::harness::testing
