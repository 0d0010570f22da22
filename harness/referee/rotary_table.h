// Which checkpoint of a recording made the cos and sin that another one takes.
#pragma once

#include "harness/recording/recording.h"

namespace plumb::harness {

// The rotary_table whose outputs are this checkpoint's inputs cos and sin; null: there is none.
inline const Checkpoint* rotary_table_of(const Recording& recording, const Checkpoint& checkpoint) {
  const auto cos = checkpoint.inputs.find("cos"), sin = checkpoint.inputs.find("sin");
  if (cos == checkpoint.inputs.end() || sin == checkpoint.inputs.end()) return nullptr;
  for (const Checkpoint& maker : recording.checkpoints()) {
    if (maker.block == "rotary_table" && maker.outputs.at("cos").tensor == cos->second.tensor &&
        maker.outputs.at("sin").tensor == sin->second.tensor) {
      return &maker;
    }
  }
  return nullptr;
}

}  // namespace plumb::harness
