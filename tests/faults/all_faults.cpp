// The faults of every block: its own, and those of its ops that are listed in replaced.txt.
#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "kernels/core/error.h"
#include "tests/faults/fault.h"
#include "tests/faults/generic.h"

namespace plumb::harness::testing {
namespace {

const std::vector<GenericFault>& generic(OpId op) {
  static std::map<OpId, std::vector<GenericFault>> made;
  const auto [at, first] = made.try_emplace(op);
  if (first) at->second = generic_faults(op);
  return at->second;
}

// "add: b: negated" in a block: the fault of this name of that op.
Fault planted(const std::string& block, const std::string& name) {
  for (int i = 0; i < kOpCount; ++i) {
    const auto op = static_cast<OpId>(i);
    if (!name.starts_with(text(name_of(op), ": "))) continue;
    for (const GenericFault& it : generic(op)) {
      if (text(name_of(op), ": ", it.name) == name) return {block, name, it.hooks};
    }
  }
  throw Error(text("[faults] ", block, ": no op has the fault ", name));
}

}  // namespace

std::vector<ListedFault> listed_faults() {
  std::ifstream file("tests/faults/replaced.txt");
  std::vector<ListedFault> out;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    ListedFault& it = out.emplace_back();
    for (std::string* word : {&it.block, &it.name, &it.by}) std::getline(words, *word, '\t');
  }
  if (out.empty()) throw Error("[faults] no tests/faults/replaced.txt: run in the top folder");
  return out;
}

std::vector<std::vector<Fault>> all_faults() {
  std::vector<std::vector<Fault>> out = own_faults();
  std::set<std::pair<std::string, std::string>> known;
  for (const ListedFault& it : listed_faults()) {
    if (it.by == kStays || !known.insert({it.block, it.by}).second) continue;
    const auto list = std::find_if(out.begin(), out.end(), [&](const std::vector<Fault>& faults) {
      return faults.front().block == it.block;
    });
    list->push_back(planted(it.block, it.by));
  }
  return out;
}

std::vector<Fault> faults_of(const std::string& block) {
  for (std::vector<Fault>& faults : all_faults()) {
    if (faults.front().block == block) return std::move(faults);
  }
  throw Error(text("[faults] no faults of the block ", block));
}

std::vector<std::vector<Fault>> own_faults() {
  return {embedding_faults(),
          rotary_frequencies_faults(),
          rotary_table_faults(),
          rotary_faults(),
          rms_norm_faults(),
          layer_norm_faults(),
          linear_faults(),
          activation_faults(),
          glu_activation_faults(),
          glu_mlp_faults(),
          softcap_faults(),
          lm_head_faults(),
          causal_mask_faults(),
          sdpa_faults(),
          kv_cache_faults(),
          attention_faults(),
          decoder_layer_faults(),
          add_faults(),
          scale_faults(),
          repeat_kv_faults(),
          matmul_faults(),
          masked_add_faults(),
          softmax_faults(),
          low_rank_adapter_faults(),
          causal_conv1d_faults(),
          ssd_scan_faults(),
          gated_rms_norm_faults(),
          mamba2_mixer_faults(),
          mamba_layer_faults(),
          shared_transformer_faults(),
          hybrid_layer_faults(),
          mul_faults(),
          div_faults(),
          add_scalar_faults(),
          concat_faults(),
          slice_faults(),
          permute_faults(),
          cast_faults(),
          mask_fill_faults(),
          position_ids_faults(),
          conv1d_faults(),
          static_kv_cache_faults(),
          conv_cache_faults(),
          ssm_cache_faults()};
}

}  // namespace plumb::harness::testing
