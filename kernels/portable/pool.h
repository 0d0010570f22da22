// Memory for tensors out of few large chunks: each chunk costs a launch of OpenCL a microsecond,
// and Vulkan may have 4096. Work is in order, so what is given back may be taken at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>

#include "kernels/core/error.h"

namespace plumb::portable {

class Pool {
 public:
  using MakeChunk = std::function<uint64_t(size_t bytes)>;  // throws DeviceError when there is none

  uint64_t take(size_t bytes, const MakeChunk& make_chunk) {
    bytes = std::max<size_t>((bytes + kGranule - 1) / kGranule, 1) * kGranule;
    auto found = std::find_if(free_.begin(), free_.end(),
                              [&](const auto& piece) { return piece.second >= bytes; });
    if (found == free_.end()) found = add_chunk(bytes, make_chunk);
    const auto [at, size] = *found;
    free_.erase(found);
    if (size > bytes) free_.emplace(at + bytes, size - bytes);
    taken_[at] = bytes;
    return at;
  }

  // Joins what was taken with its free neighbours of the same chunk.
  void give(uint64_t at) {
    const auto taken = taken_.find(at);
    auto piece = free_.emplace(at, taken->second).first;
    taken_.erase(taken);
    join_next(piece);
    if (piece != free_.begin()) join_next(std::prev(piece));
  }

  const std::map<uint64_t, size_t>& chunks() const { return chunks_; }

 private:
  using Pieces = std::map<uint64_t, size_t>;  // address to bytes

  static constexpr size_t kGranule = 256, kLargest = size_t{1} << 30;

  // Of more bytes than are asked for, where there is as much.
  Pieces::iterator add_chunk(size_t bytes, const MakeChunk& make_chunk) {
    size_t size = std::max(bytes, next_);
    uint64_t at = 0;
    try {
      at = make_chunk(size);
    } catch (const DeviceError&) {
      if (size == bytes) throw;
      at = make_chunk(size = bytes);
    }
    chunks_[at] = size;
    next_ = std::min(2 * next_, kLargest);
    return free_.emplace(at, size).first;
  }

  void join_next(Pieces::iterator piece) {
    const auto next = std::next(piece);
    if (next == free_.end() || piece->first + piece->second != next->first) return;
    if (chunks_.count(next->first)) return;
    piece->second += next->second;
    free_.erase(next);
  }

  size_t next_ = size_t{1} << 26;
  Pieces chunks_, free_, taken_;
};

}  // namespace plumb::portable
