// Shards: one run as many, on as many machines.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

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

}  // namespace plumb::harness
