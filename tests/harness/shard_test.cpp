#include "harness/run/shard.h"

#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/harness/error_text.h"

namespace plumb::harness {
namespace {

int64_t shard_of(const std::string& recording, const std::string& id, int64_t count) {
  int64_t found = 0;
  for (int64_t i = 1; i <= count; ++i) {
    if (!Shard{i, count}.has(recording, id)) continue;
    CHECK(found == 0);
    found = i;
  }
  return found;
}

TEST_CASE("every checkpoint is in exactly one shard, and shards are of like size") {
  constexpr int64_t kShards = 4, kIds = 1000;
  std::vector<int64_t> sizes(kShards);
  for (int64_t i = 0; i < kIds; ++i) {
    const int64_t shard = shard_of("m/case", "model.layers." + std::to_string(i) + "#0", kShards);
    REQUIRE(shard > 0);
    ++sizes[static_cast<size_t>(shard - 1)];
  }
  for (const int64_t size : sizes) CHECK((size > 200 && size < 300));
}

TEST_CASE("which shard a checkpoint is in is part of the interface") {
  // sha256("llama-a1/decode-bf16 lm_head#0"), its first 16 digits modulo 7, counted from 1
  CHECK(shard_of("llama-a1/decode-bf16", "lm_head#0", 7) == 5);
  CHECK(shard_of("llama-a1/decode-f32", "lm_head#0", 1) == 1);
}

TEST_CASE("a shard is i/n") {
  const Shard shard = Shard::parse("2/5");
  CHECK(shard.index == 2);
  CHECK(shard.count == 5);
  for (const char* wrong : {"", "2", "0/5", "6/5", "-1/5", "1/0", "1/2/3", " 1/2", "1/2 ", "a/b",
                            "1/1000001", "99999999999999999999/99999999999999999999"}) {
    CAPTURE(wrong);
    const std::string error = error_text<UsageError>([&] { Shard::parse(wrong); });
    CHECK(contains(error, "[--shard] \"" + std::string(wrong) + "\" is not i/n"));
  }
}

}  // namespace
}  // namespace plumb::harness
