// Every named fault is seen by the harness, in the block that it is in, and nowhere else.
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <set>

#include "blocks/catalog.h"
#include "tests/catch.h"
#include "tests/faults/kills.h"

namespace plumb::harness::testing {
namespace {

constexpr size_t kFewestFaults = 10;

void check_faults(const std::string& block) {
  const std::vector<Fault> faults = faults_of(block);
  CHECK(faults.size() >= kFewestFaults);
  for (const Fault& fault : faults) {
    INFO(fault.block << ": " << fault.name);
    const Kills kills = kills_of(fault, false);
    for (const std::string& text : kills.wrong) CHECK(text == "");
    CHECK(kills.reached > 0);
    CHECK(kills.killed > 0);
  }
  // What a fault takes no part in runs as without it, whichever it is: one of a block shows that.
  const auto one =
      std::find_if(faults.begin(), faults.end(), [](const Fault& f) { return !f.numbers; });
  if (one == faults.end()) return;
  for (const std::string& text : not_isolated(*one)) CHECK(text == "");
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

TEST_CASE("embedding faults are killed") { check_faults("embedding"); }
TEST_CASE("rotary_frequencies faults are killed") { check_faults("rotary_frequencies"); }
TEST_CASE("rotary_table faults are killed") { check_faults("rotary_table"); }
TEST_CASE("rotary faults are killed") { check_faults("rotary"); }
TEST_CASE("rms_norm faults are killed") { check_faults("rms_norm"); }
TEST_CASE("layer_norm faults are killed") { check_faults("layer_norm"); }
TEST_CASE("linear faults are killed") { check_faults("linear"); }
TEST_CASE("activation faults are killed") { check_faults("activation"); }
TEST_CASE("glu_activation faults are killed") { check_faults("glu_activation"); }
TEST_CASE("glu_mlp faults are killed") { check_faults("glu_mlp"); }
TEST_CASE("softcap faults are killed") { check_faults("softcap"); }
TEST_CASE("lm_head faults are killed") { check_faults("lm_head"); }
TEST_CASE("causal_mask faults are killed") { check_faults("causal_mask"); }
TEST_CASE("sdpa faults are killed") { check_faults("sdpa"); }
TEST_CASE("kv_cache faults are killed") { check_faults("kv_cache"); }
TEST_CASE("attention faults are killed") { check_faults("attention"); }
TEST_CASE("decoder_layer faults are killed") { check_faults("decoder_layer"); }
TEST_CASE("add faults are killed") { check_faults("add"); }
TEST_CASE("scale faults are killed") { check_faults("scale"); }
TEST_CASE("repeat_kv faults are killed") { check_faults("repeat_kv"); }
TEST_CASE("matmul faults are killed") { check_faults("matmul"); }
TEST_CASE("masked_add faults are killed") { check_faults("masked_add"); }
TEST_CASE("softmax faults are killed") { check_faults("softmax"); }
TEST_CASE("low_rank_adapter faults are killed") { check_faults("low_rank_adapter"); }
TEST_CASE("causal_conv1d faults are killed") { check_faults("causal_conv1d"); }
TEST_CASE("ssd_scan faults are killed") { check_faults("ssd_scan"); }
TEST_CASE("gated_rms_norm faults are killed") { check_faults("gated_rms_norm"); }
TEST_CASE("mamba2_mixer faults are killed") { check_faults("mamba2_mixer"); }
TEST_CASE("mamba_layer faults are killed") { check_faults("mamba_layer"); }
TEST_CASE("shared_transformer faults are killed") { check_faults("shared_transformer"); }
TEST_CASE("hybrid_layer faults are killed") { check_faults("hybrid_layer"); }

TEST_CASE("mul faults are killed") { check_faults("mul"); }
TEST_CASE("div faults are killed") { check_faults("div"); }
TEST_CASE("add_scalar faults are killed") { check_faults("add_scalar"); }
TEST_CASE("concat faults are killed") { check_faults("concat"); }
TEST_CASE("slice faults are killed") { check_faults("slice"); }
TEST_CASE("permute faults are killed") { check_faults("permute"); }
TEST_CASE("cast faults are killed") { check_faults("cast"); }
TEST_CASE("mask_fill faults are killed") { check_faults("mask_fill"); }
TEST_CASE("position_ids faults are killed") { check_faults("position_ids"); }
TEST_CASE("conv1d faults are killed") { check_faults("conv1d"); }
TEST_CASE("static_kv_cache faults are killed") { check_faults("static_kv_cache"); }
TEST_CASE("conv_cache faults are killed") { check_faults("conv_cache"); }
TEST_CASE("ssm_cache faults are killed") { check_faults("ssm_cache"); }

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

TEST_CASE("a fault that was once listed is one still or a generic one") {
  std::set<std::pair<std::string, std::string>> known;
  for (const auto& faults : all_faults()) {
    for (const Fault& fault : faults) known.insert({fault.block, fault.name});
  }
  for (const ListedFault& it : listed_faults()) {
    INFO(it.block << ": " << it.name << ": " << it.by);
    CHECK(known.count({it.block, it.by == kStays ? it.name : it.by}) == 1);
  }
}

// `faults_test "[kills]"` prints how many of the checkpoints that a fault reaches see it.
TEST_CASE("table of kills", "[.][kills]") {
  for (const auto& faults : all_faults()) {
    print_faults(faults);
  }
}

}  // namespace plumb::harness::testing
