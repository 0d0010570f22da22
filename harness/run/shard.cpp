#include "harness/run/shard.h"

#include <algorithm>
#include <charconv>

#include "harness/io/sha256.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

constexpr int64_t kMostShards = 1'000'000;

// The number that `words` is, or 0.
int64_t number_in(std::string_view words) {
  int64_t out = 0;
  const char* end = words.data() + words.size();
  const auto [stopped, error] = std::from_chars(words.data(), end, out);
  return error == std::errc() && stopped == end ? out : 0;
}

// The first 16 hexadecimal digits of a SHA-256.
uint64_t hash_of(std::string_view recording, std::string_view name) {
  const std::string key = text(recording, ' ', name);
  const std::string digest = sha256_hex(key.data(), static_cast<int64_t>(key.size()));
  uint64_t number = 0;
  std::from_chars(digest.data(), digest.data() + 16, number, 16);
  return number;
}

}  // namespace

Shard Shard::parse(const std::string& words) {
  const size_t slash = words.find('/');
  Shard out{0, 0};
  if (slash != std::string::npos) {
    const std::string_view all = words;
    out = {number_in(all.substr(0, slash)), number_in(all.substr(slash + 1))};
  }
  require(out.count >= 1 && out.count <= kMostShards && out.index >= 1 && out.index <= out.count,
          "--shard", '"', words, "\" is not i/n with 1 <= i <= n <= ", kMostShards,
          "; the second of five is 2/5");
  return out;
}

bool Shard::has(std::string_view recording, std::string_view checkpoint) const {
  const uint64_t number = hash_of(recording, checkpoint);
  return static_cast<int64_t>(number % static_cast<uint64_t>(count)) == index - 1;
}

std::optional<int64_t> layer_of(std::string_view checkpoint) {
  std::string_view path = checkpoint.substr(0, checkpoint.find_first_of(":#"));
  while (!path.empty()) {
    const std::string_view step = path.substr(0, path.find('.'));
    int64_t out = 0;
    const char* end = step.data() + step.size();
    const auto [stopped, error] = std::from_chars(step.data(), end, out);
    if (error == std::errc() && stopped == end && step[0] != '-') return out;
    path.remove_prefix(std::min(path.size(), step.size() + 1));
  }
  return std::nullopt;
}

LayerShards::LayerShards(std::string_view recording, const std::vector<std::string_view>& ids)
    : recording_(recording) {
  for (const std::string_view id : ids) {
    if (const auto layer = layer_of(id)) ranks_[*layer];
  }
  int64_t rank = 0;
  for (auto& [layer, place] : ranks_) place = rank++;
}

bool LayerShards::has(const Shard& shard, std::string_view checkpoint) const {
  int64_t first = 0, end = shard.count;
  if (const auto layer = layer_of(checkpoint)) {
    const auto layers = static_cast<int64_t>(ranks_.size());
    const int64_t rank = ranks_.at(*layer);
    first = rank * shard.count / layers;
    end = std::max(first + 1, (rank + 1) * shard.count / layers);
  }
  const uint64_t hash = hash_of(recording_, checkpoint.substr(0, checkpoint.find('#')));
  const auto place = static_cast<int64_t>(hash % static_cast<uint64_t>(end - first));
  return first + place == shard.index - 1;
}

}  // namespace plumb::harness
