#include "blocks/attention.h"

#include <cmath>

#include "kernels/core/error.h"
#include "tests/blocks/support.h"

using Catch::Contains;

namespace plumb::blocks::testing {
namespace {

constexpr int64_t kBatch = 2, kChannels = 12, kHeads = 4, kKvHeads = 2, kWidth = 6;

Attention make_attention(Bench& bench, bool biases) {
  const auto projection = [&](int64_t rows, int64_t columns, uint32_t seed) {
    return Linear{bench.random({rows, columns}, seed, 0.4),
                  biases ? bench.random({rows}, seed + 50) : Tensor()};
  };
  Attention a;
  a.q_proj = projection(kHeads * kWidth, kChannels, 1);
  a.k_proj = projection(kKvHeads * kWidth, kChannels, 2);
  a.v_proj = projection(kKvHeads * kWidth, kChannels, 3);
  a.o_proj = projection(kChannels, kHeads * kWidth, 4);
  a.head_dim = kWidth;
  a.sdpa.params = {0.3, 2.0};
  a.sdpa.mask.causal = true;
  return a;
}

struct Table {
  Tensor cos, sin;
};

Table table(Bench& bench, int64_t first, int64_t tokens) {
  Values positions;
  for (int64_t t = first; t < first + tokens; ++t) positions.push_back(static_cast<double>(t));
  const Table out{bench.empty({1, tokens, kWidth}), bench.empty({1, tokens, kWidth})};
  bench.ops().rotary_table(out.cos, out.sin, bench.from(DType::i64, {1, tokens}, positions),
                           bench.from({kWidth / 2}, {1, 0.3, 0.05}), 1);
  return out;
}

// Tokens [first, first + n) of hidden, contiguous.
Tensor tokens_of(Bench& bench, const Tensor& hidden, int64_t first, int64_t n) {
  const Tensor out = bench.empty({kBatch, n, hidden.dim(2)});
  bench.ops().copy(out, hidden.slice(1, first, first + n));
  return out;
}

Tensor projected(Bench& bench, const Linear& projection, const Tensor& hidden) {
  const Tensor flat = bench.empty({kBatch, hidden.dim(1), projection.rows()});
  bench.ops().linear(flat, hidden, projection.weight, projection.bias);
  return flat.view({kBatch, hidden.dim(1), projection.rows() / kWidth, kWidth}).transpose(1, 2);
}

Tensor concatenated(Bench& bench, const Tensor& a, const Tensor& b) {
  const Tensor out = bench.empty({a.dim(0), a.dim(1), a.dim(2) + b.dim(2), a.dim(3)});
  bench.ops().copy(out.slice(2, 0, a.dim(2)), a);
  bench.ops().copy(out.slice(2, a.dim(2), out.dim(2)), b);
  return out;
}

}  // namespace

TEST_CASE("attention with a cache is sdpa over the stored and the new keys") {
  Bench bench(GENERATE("cpu", "oracle"));
  const bool biases = GENERATE(false, true);
  const RotaryStyle style = GENERATE(RotaryStyle::half, RotaryStyle::interleaved);
  constexpr int64_t kPast = 5, kTokens = 3;
  Attention attention = make_attention(bench, biases);
  attention.rotation.style = style;
  attention.cache = KvCache{7};
  attention.sdpa.mask.window = 7;
  attention.sdpa.mask.query_offset = kPast;
  const Tensor hidden = bench.random({kBatch, kTokens, kChannels}, 10);
  const Table rotary = table(bench, kPast, kTokens);
  const Tensor keys = bench.random({kBatch, kKvHeads, kPast, kWidth}, 11);
  const Tensor values = bench.random({kBatch, kKvHeads, kPast, kWidth}, 12);
  const Tensor keys_after = bench.empty({kBatch, kKvHeads, 6, kWidth});
  const Tensor values_after = bench.empty({kBatch, kKvHeads, 6, kWidth});
  const Tensor out = bench.empty(hidden.shape());
  attention(bench.context(), out, hidden, rotary.cos, rotary.sin,
            {KvTensors{keys, values, keys_after, values_after}});

  const Tensor q = projected(bench, attention.q_proj, hidden);
  const Tensor k = projected(bench, attention.k_proj, hidden);
  bench.ops().rotary(q, q, rotary.cos, rotary.sin, style);
  bench.ops().rotary(k, k, rotary.cos, rotary.sin, style);
  const Tensor all_keys = concatenated(bench, keys, k);
  const Tensor all_values = concatenated(bench, values, projected(bench, attention.v_proj, hidden));
  const Tensor context = bench.empty({kBatch, kTokens, kHeads, kWidth});
  bench.ops().sdpa(context, q, all_keys, all_values, attention.sdpa.mask, attention.sdpa.params);
  const Tensor expected = bench.empty(hidden.shape());
  bench.ops().linear(expected, context.view({kBatch, kTokens, kHeads * kWidth}),
                     attention.o_proj.weight, attention.o_proj.bias);
  CHECK(same_values(out, expected));
  CHECK(same_values(keys_after, all_keys.slice(2, 2, 8)));
  CHECK(same_values(values_after, all_values.slice(2, 2, 8)));
}

TEST_CASE("one packed projection is the three, queries first") {
  Bench bench(GENERATE("cpu", "oracle"));
  const bool biases = GENERATE(false, true);
  constexpr int64_t kTokens = 3;
  const Attention separate = make_attention(bench, biases);
  const auto joined = [&](Tensor Linear::*part, const Shape& rest) {
    Values all;
    for (const Linear* it : {&separate.q_proj, &separate.k_proj, &separate.v_proj}) {
      const Values rows = values_of(it->*part);
      all.insert(all.end(), rows.begin(), rows.end());
    }
    return bench.from(rest, all);
  };
  constexpr int64_t kRows = (kHeads + 2 * kKvHeads) * kWidth;
  Attention packed = separate;
  packed.q_proj = packed.k_proj = packed.v_proj = {};
  packed.qkv_proj = {joined(&Linear::weight, {kRows, kChannels}),
                     biases ? joined(&Linear::bias, {kRows}) : Tensor()};
  const Tensor hidden = bench.random({kBatch, kTokens, kChannels}, 40);
  const Table rotary = table(bench, 0, kTokens);
  const auto run = [&](const Attention& attention) {
    const Tensor out = bench.empty(hidden.shape());
    attention(bench.context(), out, hidden, rotary.cos, rotary.sin, {});
    return out;
  };
  CHECK(same_values(run(packed), run(separate)));
}

TEST_CASE("a LayerNorm of each head has a weight of each") {
  Bench bench(GENERATE("cpu", "oracle"));
  const Tensor x = bench.random({kBatch, 3, kHeads, kWidth}, 41), out = bench.empty(x.shape());
  const Tensor weight = bench.random({kHeads, kWidth}, 42), expected = bench.empty(x.shape());
  const auto run = [&](const Tensor& y, const std::map<std::string, Tensor>& weights) {
    run_block(bench, "layer_norm", params_of({{"eps", 1e-5}}), {{{"x", x}}, weights, {{"out", y}}});
  };
  run(out, {{"weight", weight}});
  for (int64_t h = 0; h < kHeads; ++h) {
    bench.ops().layer_norm(expected.slice(2, h, h + 1), x.slice(2, h, h + 1),
                           weight.slice(0, h, h + 1).view({kWidth}), {}, 1e-5);
  }
  CHECK(same_values(out, expected));
  const Tensor transposed = weight.view({kWidth, kHeads});
  CHECK_THAT(message_of<BadInput>([&] {
               run(out, {{"weight", transposed}});
             }),
             Contains("weight has shape") && Contains("4 heads of 6 channels"));
}

TEST_CASE("norms of queries and keys are of each head and come before rotary") {
  Bench bench(GENERATE("cpu", "oracle"));
  constexpr int64_t kTokens = 3;
  Attention attention = make_attention(bench, false);
  const RmsNormParams params{1e-6, 0, WeightRounding::before};
  attention.q_norm = RmsNorm{bench.random({kWidth}, 30), params};
  attention.k_norm = RmsNorm{bench.random({kWidth}, 31), params};
  const Tensor hidden = bench.random({kBatch, kTokens, kChannels}, 32);
  const Table rotary = table(bench, 0, kTokens);
  const Tensor out = bench.empty(hidden.shape());
  attention(bench.context(), out, hidden, rotary.cos, rotary.sin, {});

  const auto normed = [&](const Linear& projection, const Norm& norm) {
    const Tensor heads = projected(bench, projection, hidden);
    const Tensor rows = heads.transpose(1, 2);  // contiguous again
    norm(bench.context(), rows, rows);
    bench.ops().rotary(heads, heads, rotary.cos, rotary.sin, RotaryStyle::half);
    return heads;
  };
  const Tensor q = normed(attention.q_proj, *attention.q_norm);
  const Tensor k = normed(attention.k_proj, *attention.k_norm);
  const Tensor context = bench.empty({kBatch, kTokens, kHeads, kWidth});
  bench.ops().sdpa(context, q, k, projected(bench, attention.v_proj, hidden), attention.sdpa.mask,
                   attention.sdpa.params);
  const Tensor expected = bench.empty(hidden.shape());
  bench.ops().linear(expected, context.view({kBatch, kTokens, kHeads * kWidth}),
                     attention.o_proj.weight, attention.o_proj.bias);
  CHECK(same_values(out, expected));
}

TEST_CASE("attention in steps through a cache is attention over everything at once") {
  Bench bench(GENERATE("cpu", "oracle"));
  const int64_t window = GENERATE(0, 3);
  constexpr int64_t kTokens = 9;
  Attention attention = make_attention(bench, true);
  if (window) attention.sdpa.mask.window = window;
  const Tensor hidden = bench.random({kBatch, kTokens, kChannels}, 20);
  const Tensor whole = bench.empty(hidden.shape());
  const Table all = table(bench, 0, kTokens);
  attention(bench.context(), whole, hidden, all.cos, all.sin, {});

  attention.cache = KvCache{window ? std::optional<int64_t>(window) : std::nullopt};
  KvTensors state;
  int64_t stored = 0, done = 0;
  for (const int64_t n : {4, 1, 3, 1}) {
    const int64_t kept = attention.cache->kept(stored + n);
    state.keys_after = bench.empty({kBatch, kKvHeads, kept, kWidth});
    state.values_after = bench.empty({kBatch, kKvHeads, kept, kWidth});
    attention.sdpa.mask.query_offset = done;
    attention.sdpa.mask.key_offset = done - stored;
    const Table rotary = table(bench, done, n);
    const Tensor out = bench.empty({kBatch, n, kChannels});
    attention(bench.context(), out, tokens_of(bench, hidden, done, n), rotary.cos, rotary.sin,
              {state});
    INFO("tokens from " << done);
    CHECK(distance(out, tokens_of(bench, whole, done, n)) <
          (bench.dtype() == DType::f64 ? 1e-13 : 1e-5));
    state = {state.keys_after, state.values_after, {}, {}};
    stored = kept;
    done += n;
  }
}

TEST_CASE("attention: heads see their own key head, queries only the past") {
  Bench bench("oracle");
  Attention attention = make_attention(bench, false);
  const Tensor hidden = bench.random({kBatch, 4, kChannels}, 30);
  const Table rotary = table(bench, 0, 4);
  const auto run = [&](const Tensor& x) {
    const Tensor out = bench.empty(x.shape());
    attention(bench.context(), out, x, rotary.cos, rotary.sin, {});
    return out;
  };
  const Tensor right = run(hidden);
  Values later = values_of(hidden);
  later[3 * kChannels] += 1;  // batch 0, token 3
  const Tensor changed = run(bench.from(hidden.shape(), later));
  CHECK(same_values(changed.slice(1, 0, 3), right.slice(1, 0, 3)));
  CHECK(same_values(changed.slice(0, 1, 2), right.slice(0, 1, 2)));
  CHECK(distance(changed, right) > 1e-3);

  // With value head 1 at zero, only the first half of the query heads is left.
  Values v = values_of(attention.v_proj.weight);
  std::fill(v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end(), 0.0);
  attention.v_proj.weight = bench.from(attention.v_proj.weight.shape(), v);
  Values o = values_of(attention.o_proj.weight);
  const Tensor with_half = run(hidden);
  for (size_t i = 0; i < o.size(); ++i) {
    if (i % (kHeads * kWidth) >= kHeads * kWidth / 2) o[i] = 0;
  }
  attention.o_proj.weight = bench.from(attention.o_proj.weight.shape(), o);
  CHECK(distance(run(hidden), with_half) < 1e-15);
}

TEST_CASE("attention: a head width that does not divide the projections is refused") {
  Bench bench("oracle");
  Weights::Map tensors;
  for (const char* name : {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"}) {
    tensors[name] = bench.zeros({10, 4});
  }
  const auto load = [&](double head_dim) {
    Attention::load(weights_of(tensors), params_of({{"head_dim", head_dim},
                                                    {"style", std::string("half")},
                                                    {"scale", 1.0},
                                                    {"softcap", Params::Null{}},
                                                    {"causal", true},
                                                    {"window", Params::Null{}},
                                                    {"query_offset", 0.0},
                                                    {"key_offset", 0.0},
                                                    {"fully_masked", std::string("uniform")},
                                                    {"cache", Params::Null{}}}));
  };
  CHECK_NOTHROW(load(5));
  CHECK_THAT(message_of<BadInput>([&] { load(4); }),
             Contains("head_dim is 4") && Contains("10 rows"));
  CHECK_THAT(message_of<BadInput>([&] { load(0); }), Contains("head_dim is 0"));
}

}  // namespace plumb::blocks::testing
