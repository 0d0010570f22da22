// The MLP and the head: composed of ops that have their own tests, so compared bit for bit.
#include <cmath>

#include "blocks/glu_mlp.h"
#include "blocks/lm_head.h"
#include "kernels/core/error.h"
#include "tests/blocks/support.h"

using Catch::Contains;

namespace plumb::blocks::testing {
namespace {

constexpr int64_t kChannels = 10, kInner = 14;

// Two matrices stacked: rows of a, then rows of b.
Tensor stacked(Bench& bench, const Tensor& a, const Tensor& b) {
  Values values = values_of(a), more = values_of(b);
  values.insert(values.end(), more.begin(), more.end());
  Shape shape = a.shape();
  shape.set(0, a.dim(0) + b.dim(0));
  return bench.from(shape, values);
}

}  // namespace

TEST_CASE("glu_mlp: packed weights are the separate ones, gate first") {
  Bench bench(GENERATE("cpu", "oracle"));
  const bool biases = GENERATE(false, true);
  const std::string function = GENERATE("silu", "gelu", "gelu_pytorch_tanh");
  const Tensor gate = bench.random({kInner, kChannels}, 1),
               up = bench.random({kInner, kChannels}, 2);
  const Tensor down = bench.random({kChannels, kInner}, 3);
  const Tensor gate_bias = bench.random({kInner}, 4), up_bias = bench.random({kInner}, 5);
  const Tensor down_bias = bench.random({kChannels}, 6);
  Operands separate, packed;
  separate.weights = {
      {"gate_proj.weight", gate}, {"up_proj.weight", up}, {"down_proj.weight", down}};
  packed.weights = {{"gate_up_proj.weight", stacked(bench, gate, up)}, {"down_proj.weight", down}};
  if (biases) {
    separate.weights.insert({{"gate_proj.bias", gate_bias}, {"up_proj.bias", up_bias}});
    packed.weights["gate_up_proj.bias"] = stacked(bench, gate_bias, up_bias);
    separate.weights["down_proj.bias"] = packed.weights["down_proj.bias"] = down_bias;
  }
  const Tensor hidden = bench.random({2, 3, kChannels}, 7);
  for (Operands* operands : {&separate, &packed}) {
    operands->inputs["hidden"] = hidden;
    operands->outputs["out"] = bench.empty(hidden.shape());
    run_block(bench, "glu_mlp", params_of({{"function", function}}), *operands);
  }
  CHECK(same_values(separate.outputs["out"], packed.outputs["out"]));

  // down(act(gate(x)) * up(x))
  const auto inner = [&] { return bench.empty({2, 3, kInner}); };
  const Tensor g = inner(), u = inner(), expected = bench.empty(hidden.shape());
  bench.ops().linear(g, hidden, gate, biases ? gate_bias : Tensor());
  bench.ops().linear(u, hidden, up, biases ? up_bias : Tensor());
  bench.ops().gated_activation(g, g, u, *activation_from_name(function));
  bench.ops().linear(expected, g, down, biases ? down_bias : Tensor());
  CHECK(same_values(separate.outputs["out"], expected));
}

TEST_CASE("lm_head: the last tokens, projected, then capped") {
  Bench bench(GENERATE("cpu", "oracle"));
  const int64_t keep = GENERATE(0, 1, 3, 5, 8);  // of 5 tokens; 0 is all
  const double cap = GENERATE(0.0, 2.0);         // 0: none
  const bool biased = GENERATE(false, true);
  constexpr int64_t kTokens = 5, kVocab = 7;
  const Tensor hidden = bench.random({2, kTokens, kChannels}, 1);
  const Tensor weight = bench.random({kVocab, kChannels}, 2), bias = bench.random({kVocab}, 3);
  const int64_t kept = keep == 0 ? kTokens : std::min(keep, kTokens);
  const Tensor out = bench.empty({2, kept, kVocab}), expected = bench.empty({2, kept, kVocab});
  Operands operands{{{"hidden", hidden}}, {{"weight", weight}}, {{"out", out}}};
  if (biased) operands.weights["bias"] = bias;
  run_block(bench, "lm_head",
            params_of({{"logits_to_keep", static_cast<double>(keep)},
                       {"softcap", cap > 0 ? Params::Value(cap) : Params::Null{}}}),
            operands);
  const Tensor last = bench.empty({2, kept, kChannels});
  bench.ops().copy(last, hidden.slice(1, kTokens - kept, kTokens));
  bench.ops().linear(expected, last, weight, biased ? bias : Tensor());
  if (cap > 0) {
    for (const double logit : values_of(out)) CHECK(std::fabs(logit) <= cap);
    bench.ops().softcap(expected, expected, cap);
  }
  CHECK(distance(out, expected) < (bench.dtype() == DType::f64 ? 1e-14 : 2e-6));
}

TEST_CASE("lm_head: a negative number of tokens is refused") {
  Bench bench("oracle");
  const Operands operands{{{"hidden", bench.zeros({1, 2, 4})}},
                          {{"weight", bench.zeros({3, 4})}},
                          {{"out", bench.empty({1, 2, 3})}}};
  const Params params = params_of({{"logits_to_keep", -1.0}, {"softcap", Params::Null{}}});
  CHECK_THAT(message_of<BadInput>([&] { run_block(bench, "lm_head", params, operands); }),
             Contains("logits_to_keep is -1"));
}

TEST_CASE("embedding: rows by id, scaled when there is a scale") {
  Bench bench(GENERATE("cpu", "oracle"));
  const double scale = GENERATE(1.0, 0.5, 3.0);
  const Tensor weight = bench.from({3, 2}, {1, 2, 3, 4, 5, 6}), out = bench.empty({2, 2, 2});
  run_block(bench, "embedding", params_of({{"scale", scale}}),
            {{{"ids", bench.from(DType::i64, {2, 2}, {2, 0, 1, 2})}},
             {{"weight", weight}},
             {{"out", out}}});
  Values expected = {5, 6, 1, 2, 3, 4, 5, 6};
  for (double& x : expected) x *= scale;
  CHECK(values_of(out) == expected);
}

}  // namespace plumb::blocks::testing
