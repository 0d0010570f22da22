// Shards: one run as many, on as many machines.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace plumb::harness {

// Which of `count` shards a checkpoint is in follows from its recording's name and its id alone (a
// SHA-256 of both, modulo `count`): other recordings and checkpoints move nothing. The devices, so
// that all of a checkpoint's results come from one shard, have no say; a chain is one thing.
struct Shard {
  int64_t index = 1;  // from 1
  int64_t count = 1;

  // "2/5". Throws UsageError.
  static Shard parse(const std::string& words);
  bool has(std::string_view recording, std::string_view checkpoint) const;
};

// The number of the layer that a checkpoint is in: the first number among the steps of its path.
std::optional<int64_t> layer_of(std::string_view checkpoint);

// Shards of one recording by its layers, so that a machine needs few layers' tensors: of L layers
// that have checkpoints, the one with rank r (from 0) is in the shards r n / L to (r + 1) n / L.
// All calls of a module, and of what is in no layer, are in one shard, by the hash of recording
// and path. reports/fleet/layers.py has the same rule.
class LayerShards {
 public:
  // ids: of all checkpoints of the recording.
  LayerShards(std::string_view recording, const std::vector<std::string_view>& ids);
  bool has(const Shard& shard, std::string_view checkpoint) const;

 private:
  std::string recording_;
  std::map<int64_t, int64_t> ranks_;  // by layer
};

}  // namespace plumb::harness
