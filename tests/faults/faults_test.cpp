// Every named fault is seen by the harness, in the block that it is in, and nowhere else.
#include <iomanip>
#include <iostream>
#include <set>

#include "blocks/catalog.h"
#include "tests/catch.h"
#include "tests/faults/kills.h"

namespace plumb::harness::testing {
namespace {

constexpr size_t kFewestFaults = 10;

void check_faults(const std::vector<Fault>& faults) {
  CHECK(faults.size() >= kFewestFaults);
  for (const Fault& fault : faults) {
    INFO(fault.block << ": " << fault.name);
    const Kills kills = kills_of(fault, false);
    for (const std::string& text : kills.wrong) CHECK(text == "");
    CHECK(kills.reached > 0);
    CHECK(kills.killed > 0);
    for (const std::string& text : not_isolated(fault)) CHECK(text == "");
  }
}

void print_faults(const std::vector<Fault>& faults) {
  for (const Fault& fault : faults) {
    const Kills kills = kills_of(fault, true);
    std::cout << std::left << std::setw(20) << fault.block << std::setw(58) << fault.name
              << std::right << std::setw(4) << kills.killed << " of " << std::setw(3)
              << kills.reached << "  " << kills.reason.substr(0, kills.reason.find('\n')) << '\n';
  }
}

}  // namespace

TEST_CASE("embedding faults are killed") { check_faults(embedding_faults()); }
TEST_CASE("rotary_frequencies faults are killed") { check_faults(rotary_frequencies_faults()); }
TEST_CASE("rotary_table faults are killed") { check_faults(rotary_table_faults()); }
TEST_CASE("rotary faults are killed") { check_faults(rotary_faults()); }
TEST_CASE("rms_norm faults are killed") { check_faults(rms_norm_faults()); }
TEST_CASE("layer_norm faults are killed") { check_faults(layer_norm_faults()); }
TEST_CASE("linear faults are killed") { check_faults(linear_faults()); }
TEST_CASE("activation faults are killed") { check_faults(activation_faults()); }
TEST_CASE("glu_activation faults are killed") { check_faults(glu_activation_faults()); }
TEST_CASE("glu_mlp faults are killed") { check_faults(glu_mlp_faults()); }
TEST_CASE("softcap faults are killed") { check_faults(softcap_faults()); }
TEST_CASE("lm_head faults are killed") { check_faults(lm_head_faults()); }
TEST_CASE("causal_mask faults are killed") { check_faults(causal_mask_faults()); }
TEST_CASE("sdpa faults are killed") { check_faults(sdpa_faults()); }
TEST_CASE("kv_cache faults are killed") { check_faults(kv_cache_faults()); }
TEST_CASE("attention faults are killed") { check_faults(attention_faults()); }
TEST_CASE("decoder_layer faults are killed") { check_faults(decoder_layer_faults()); }
TEST_CASE("add faults are killed") { check_faults(add_faults()); }
TEST_CASE("scale faults are killed") { check_faults(scale_faults()); }
TEST_CASE("repeat_kv faults are killed") { check_faults(repeat_kv_faults()); }
TEST_CASE("matmul faults are killed") { check_faults(matmul_faults()); }
TEST_CASE("masked_add faults are killed") { check_faults(masked_add_faults()); }
TEST_CASE("softmax faults are killed") { check_faults(softmax_faults()); }
TEST_CASE("low_rank_adapter faults are killed") { check_faults(low_rank_adapter_faults()); }
TEST_CASE("causal_conv1d faults are killed") { check_faults(causal_conv1d_faults()); }
TEST_CASE("ssd_scan faults are killed") { check_faults(ssd_scan_faults()); }
TEST_CASE("gated_rms_norm faults are killed") { check_faults(gated_rms_norm_faults()); }
TEST_CASE("mamba2_mixer faults are killed") { check_faults(mamba2_mixer_faults()); }
TEST_CASE("mamba_layer faults are killed") { check_faults(mamba_layer_faults()); }
TEST_CASE("shared_transformer faults are killed") { check_faults(shared_transformer_faults()); }
TEST_CASE("hybrid_layer faults are killed") { check_faults(hybrid_layer_faults()); }

TEST_CASE("mul faults are killed") { check_faults(mul_faults()); }
TEST_CASE("div faults are killed") { check_faults(div_faults()); }
TEST_CASE("add_scalar faults are killed") { check_faults(add_scalar_faults()); }
TEST_CASE("concat faults are killed") { check_faults(concat_faults()); }
TEST_CASE("slice faults are killed") { check_faults(slice_faults()); }
TEST_CASE("permute faults are killed") { check_faults(permute_faults()); }
TEST_CASE("cast faults are killed") { check_faults(cast_faults()); }
TEST_CASE("mask_fill faults are killed") { check_faults(mask_fill_faults()); }
TEST_CASE("position_ids faults are killed") { check_faults(position_ids_faults()); }
TEST_CASE("conv1d faults are killed") { check_faults(conv1d_faults()); }
TEST_CASE("static_kv_cache faults are killed") { check_faults(static_kv_cache_faults()); }
TEST_CASE("conv_cache faults are killed") { check_faults(conv_cache_faults()); }
TEST_CASE("ssm_cache faults are killed") { check_faults(ssm_cache_faults()); }

TEST_CASE("every block of the catalog has its faults") {
  std::set<std::string> blocks;
  for (const auto& faults : all_faults()) {
    std::set<std::string> names;
    for (const Fault& fault : faults) {
      INFO(fault.block << ": " << fault.name);
      CHECK(fault.block == faults.front().block);
      CHECK(names.insert(fault.name).second);
    }
    CHECK(blocks.insert(faults.front().block).second);
  }
  for (const blocks::BlockEntry& entry : blocks::block_catalog()) {
    INFO(entry.name);
    CHECK(blocks.count(std::string(entry.name)) == 1);
  }
}

// `faults_test "[kills]"` prints how many of the checkpoints that a fault reaches see it.
TEST_CASE("table of kills", "[.][kills]") {
  for (const auto& faults : all_faults()) {
    print_faults(faults);
  }
}

}  // namespace plumb::harness::testing
