#include "harness/run/shard.h"

#include <map>
#include <string>
#include <string_view>
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

TEST_CASE("a layer is the first number among a path's steps") {
  CHECK(layer_of("model.layers.17.self_attn:sdpa#3") == 17);
  CHECK(layer_of("model.layers.17#0") == 17);
  CHECK(layer_of("layers.2.experts.7.up_proj#0") == 2);
  CHECK(layer_of("h.3:attention#0") == 3);
  for (const char* id : {"model.norm#17", "model.rotary1.5x#0", "(chain)", "", "#1", "a..b#0",
                         "h.-3#0", "h.99999999999999999999#0"}) {
    CAPTURE(id);
    CHECK(!layer_of(id));
  }
}

TEST_CASE("shards by layers hold neighbouring layers, and every checkpoint once") {
  std::vector<std::string> ids{"model.embed_tokens#0", "lm_head#0", "lm_head#1"};
  for (const int layer : {0, 1, 15, 16, 31}) {
    for (const char* path : {"", ".mlp", ".self_attn"}) {
      for (const char* call : {"#0", "#1"})
        ids.push_back("model.layers." + std::to_string(layer) + path + call);
    }
  }
  const std::vector<std::string_view> all(ids.begin(), ids.end());
  const LayerShards shards("m/case", all);
  for (const int64_t count : {1, 2, 3, 5, 17}) {
    std::map<std::string, int64_t> place;
    for (const std::string& id : ids) {
      for (int64_t i = 1; i <= count; ++i) {
        if (!shards.has({i, count}, id)) continue;
        CHECK(place.emplace(id, i).second);
      }
    }
    CHECK(place.size() == ids.size());
    CHECK(place["lm_head#0"] == place["lm_head#1"]);
    int64_t before = 0;
    for (const int layer : {0, 1, 15, 16, 31}) {
      const std::string name = "model.layers." + std::to_string(layer);
      CHECK(place[name + ".mlp#0"] == place[name + ".mlp#1"]);
      CHECK(place[name + "#0"] >= before);
      if (count == 5) CHECK(place[name + "#0"] == ++before);
      if (count <= 5) CHECK(place[name + "#0"] == place[name + ".mlp#0"]);
      before = place[name + "#0"];
    }
  }
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
