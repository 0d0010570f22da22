#include "harness/run/shard.h"

#include <charconv>

#include "harness/io/sha256.h"
#include "kernels/error.h"

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
  const std::string key = text(recording, ' ', checkpoint);
  const std::string digest = sha256_hex(key.data(), static_cast<int64_t>(key.size()));
  uint64_t number = 0;
  std::from_chars(digest.data(), digest.data() + 16, number, 16);
  return static_cast<int64_t>(number % static_cast<uint64_t>(count)) == index - 1;
}

}  // namespace plumb::harness
