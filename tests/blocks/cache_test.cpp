#include "blocks/kv_cache.h"
#include "kernels/core/error.h"
#include "tests/blocks/support.h"

using Catch::Contains;

namespace plumb::blocks::testing {
namespace {

Params cache_params(Params::Value window) {
  return params_of({{"kind", std::string("dynamic")}, {"window", window}});
}

// [B, H, n, D]: slot s of the sequence holds values that tell batch, head, slot and column.
Tensor slots(Bench& bench, int64_t first, int64_t n, double sign) {
  constexpr int64_t kBatch = 2, kHeads = 3, kWidth = 2;
  Values values;
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t s = first; s < first + n; ++s) {
        for (int64_t d = 0; d < kWidth; ++d) {
          values.push_back(sign * static_cast<double>(1000 * b + 100 * h + 2 * s + d + 1));
        }
      }
    }
  }
  return bench.from({kBatch, kHeads, n, kWidth}, values);
}

Tensor undefined_if_empty(const Tensor& t) { return t.dim(2) == 0 ? Tensor() : t; }

}  // namespace

TEST_CASE("kv_cache: everything is seen, and what stays is the whole or the last window - 1") {
  Bench bench(GENERATE("cpu", "oracle"));
  const int64_t window = GENERATE(0, 2, 4, 100);  // 0: none
  const Params params =
      cache_params(window ? Params::Value(static_cast<double>(window)) : Params::Null{});
  const auto kept = [&](int64_t total) { return window ? std::min(window - 1, total) : total; };
  int64_t begin = 0, end = 0;  // slots in the cache
  for (const int64_t tokens : {3, 1, 5, 1, 1}) {
    INFO("window " << window << ", slots " << begin << " to " << end << ", new " << tokens);
    const int64_t total = end - begin + tokens, stays = kept(total);
    std::map<std::string, Tensor> inputs, outputs;
    for (const double sign : {1.0, -1.0}) {
      const std::string all = sign > 0 ? "keys" : "values";
      inputs[sign > 0 ? "k" : "v"] = slots(bench, end, tokens, sign);
      const Tensor before = undefined_if_empty(slots(bench, begin, end - begin, sign));
      if (before.defined()) inputs[all + "_before"] = before;
      outputs[all] = bench.empty({2, 3, total, 2});
      outputs[all + "_after"] = bench.empty({2, 3, stays, 2});
    }
    run_block(bench, "kv_cache", params, {inputs, {}, outputs});
    end += tokens;
    for (const double sign : {1.0, -1.0}) {
      const std::string all = sign > 0 ? "keys" : "values";
      CHECK(same_values(outputs.at(all), slots(bench, begin, end - begin, sign)));
      CHECK(same_values(outputs.at(all + "_after"), slots(bench, end - stays, stays, sign)));
    }
    begin = end - stays;
  }
}

TEST_CASE("kv_cache: what it cannot be is refused") {
  CHECK(KvCache::load(cache_params(Params::Null{})).kept(7) == 7);
  CHECK(KvCache::load(cache_params(4.0)).kept(3) == 3);
  CHECK(KvCache::load(cache_params(4.0)).kept(4) == 3);
  for (const double window : {1.0, 0.0, -5.0}) {
    CHECK_THAT(message_of<Unsupported>([&] { KvCache::load(cache_params(window)); }),
               Contains("sliding cache with window " + std::to_string(static_cast<int>(window))));
  }
  const Params other = params_of({{"kind", std::string("static")}, {"window", Params::Null{}}});
  CHECK_THAT(message_of<Unsupported>([&] { KvCache::load(other); }), Contains("\"static\""));
}

TEST_CASE("kv_cache: shapes that do not fit name both numbers") {
  Bench bench("cpu");
  const KvCache cache{4};
  const Tensor before = bench.zeros({1, 1, 3, 2}), fresh = bench.zeros({1, 1, 2, 2});
  CHECK_THAT(message_of<UsageError>([&] {
               cache.append(bench.context(), bench.empty({1, 1, 6, 2}), before, fresh);
             }),
             Contains("[1, 1, 6, 2], stored 3 + new [1, 1, 2, 2]"));
  CHECK_THAT(message_of<UsageError>([&] {
               cache.keep(bench.context(), bench.empty({1, 1, 4, 2}), bench.zeros({1, 1, 5, 2}));
             }),
             Contains("[1, 1, 4, 2], expected 3 of 5"));
}

}  // namespace plumb::blocks::testing
