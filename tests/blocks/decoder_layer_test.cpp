// A decoder layer against its formula written out with the blocks that it is made of, bit for bit.
#include "blocks/decoder_layer.h"

#include <numeric>

#include "blocks/backward.h"
#include "kernels/core/error.h"
#include "tests/blocks/support.h"

using Catch::Contains;

namespace plumb::blocks::testing {
namespace {

constexpr int64_t kBatch = 2, kTokens = 4, kChannels = 8, kInner = 12, kHeads = 2, kWidth = 4;

Weights::Map weights(Bench& bench, LayerForm form) {
  Weights::Map out;
  uint32_t seed = 1;
  const auto matrix = [&](const std::string& name, int64_t rows, int64_t columns) {
    out[name + ".weight"] = bench.random({rows, columns}, seed++, 0.4);
  };
  matrix("self_attn.q_proj", kHeads * kWidth, kChannels);
  matrix("self_attn.k_proj", kWidth, kChannels);
  matrix("self_attn.v_proj", kWidth, kChannels);
  matrix("self_attn.o_proj", kChannels, kHeads * kWidth);
  matrix("mlp.gate_proj", kInner, kChannels);
  matrix("mlp.up_proj", kInner, kChannels);
  matrix("mlp.down_proj", kChannels, kInner);
  const auto norm = [&](const char* name) {
    out[std::string(name) + ".weight"] = bench.random({kChannels}, seed++);
  };
  norm("input_layernorm");
  if (form != LayerForm::parallel) norm("post_attention_layernorm");
  if (form == LayerForm::sandwich)
    norm("pre_feedforward_layernorm"), norm("post_feedforward_layernorm");
  return out;
}

Params layer_params(LayerForm form) {
  const bool sandwich = form == LayerForm::sandwich;
  const Params layer_norm = params_of({{"eps", 1e-5}});
  const Params norm = params_of({{"eps", 1e-5},
                                 {"weight_offset", sandwich ? 1.0 : 0.0},
                                 {"rounding", std::string(sandwich ? "after" : "before")}});
  const Params attention = params_of({{"head_dim", static_cast<double>(kWidth)},
                                      {"style", std::string("half")},
                                      {"cache", Params::Null{}},
                                      {"causal", true},
                                      {"window", sandwich ? Params::Value(3.0) : Params::Null{}},
                                      {"query_offset", 0.0},
                                      {"key_offset", 0.0},
                                      {"fully_masked", std::string("uniform")},
                                      {"scale", 0.4},
                                      {"softcap", sandwich ? Params::Value(2.0) : Params::Null{}}});
  const Params mlp =
      params_of({{"function", std::string(sandwich ? "gelu_pytorch_tanh" : "silu")}});
  return params_of({{"form", std::string(name_of(form))},
                    {"norm", form == LayerForm::parallel ? layer_norm : norm},
                    {"attention", attention},
                    {"mlp", mlp}});
}

// The parts of a layer, each run by name.
class Parts {
 public:
  Parts(Bench& bench, const DecoderLayer& layer, const Tensor& cos, const Tensor& sin)
      : bench_(bench), layer_(layer), cos_(cos), sin_(sin) {}

  Tensor norm(const Norm& norm, const Tensor& x) const {
    const Tensor out = bench_.empty(x.shape());
    norm(bench_.context(), out, x);
    return out;
  }
  Tensor attention(const Tensor& x) const {
    const Tensor out = bench_.empty(x.shape());
    layer_.attention(bench_.context(), out, x, cos_, sin_, {});
    return out;
  }
  Tensor mlp(const Tensor& x) const {
    const Tensor out = bench_.empty(x.shape());
    layer_.mlp(bench_.context(), out, x);
    return out;
  }
  Tensor add(const Tensor& a, const Tensor& b) const {
    const Tensor out = bench_.empty(a.shape());
    bench_.ops().add(out, a, b);
    return out;
  }

 private:
  Bench& bench_;
  const DecoderLayer& layer_;
  const Tensor cos_, sin_;
};

}  // namespace

TEST_CASE("decoder_layer: norms and residuals where LLaMA, Gemma2 and Cohere have them") {
  Bench bench(GENERATE("cpu", "oracle"));
  const LayerForm form = GENERATE(LayerForm::pre_norm, LayerForm::sandwich, LayerForm::parallel);
  const bool fused = GENERATE(false, true);
  bench.ops().set_fused(fused ? OpSet().set() : OpSet());
  const Weights::Map tensors = weights(bench, form);
  const Params params = layer_params(form);
  const Tensor hidden = bench.random({kBatch, kTokens, kChannels}, 100);
  const Tensor cos = bench.random({1, kTokens, kWidth}, 101);
  const Tensor sin = bench.random({1, kTokens, kWidth}, 102);
  const Tensor out = bench.empty(hidden.shape());
  run_block(bench, "decoder_layer", params,
            {{{"hidden", hidden}, {"cos", cos}, {"sin", sin}}, tensors, {{"out", out}}});

  params.rewind();
  const DecoderLayer layer = DecoderLayer::load(weights_of(tensors), params);
  const Parts parts(bench, layer, cos, sin);
  Tensor expected;
  if (form == LayerForm::parallel) {
    const Tensor normed = parts.norm(layer.input_norm, hidden);
    CHECK(std::holds_alternative<LayerNorm>(layer.input_norm));
    expected = parts.add(parts.add(hidden, parts.attention(normed)), parts.mlp(normed));
  } else if (form == LayerForm::sandwich) {
    const Tensor attended = parts.norm(layer.post_attention_norm,
                                       parts.attention(parts.norm(layer.input_norm, hidden)));
    const Tensor middle = parts.add(attended, hidden);
    expected =
        parts.add(middle, parts.norm(layer.post_feedforward_norm,
                                     parts.mlp(parts.norm(layer.pre_feedforward_norm, middle))));
  } else {
    const Tensor middle = parts.add(parts.attention(parts.norm(layer.input_norm, hidden)), hidden);
    expected = parts.add(middle, parts.mlp(parts.norm(layer.post_attention_norm, middle)));
  }
  CHECK(same_values(out, expected));
}

TEST_CASE("decoder_layer: with zero weights behind both branches the input passes unchanged") {
  Bench bench(GENERATE("cpu", "oracle"));
  Weights::Map tensors = weights(bench, LayerForm::pre_norm);
  tensors["self_attn.o_proj.weight"] = bench.zeros({kChannels, kHeads * kWidth});
  tensors["mlp.down_proj.weight"] = bench.zeros({kChannels, kInner});
  const Tensor hidden = bench.random({kBatch, kTokens, kChannels}, 100);
  const Tensor table = bench.random({1, kTokens, kWidth}, 101), out = bench.empty(hidden.shape());
  run_block(bench, "decoder_layer", layer_params(LayerForm::pre_norm),
            {{{"hidden", hidden}, {"cos", table}, {"sin", table}}, tensors, {{"out", out}}});
  CHECK(same_values(out, hidden));
}

// Scratch memory is used again, norms and sums work in place, weights and inputs are read by
// several ops: all that a tape has to cope with.
TEST_CASE("decoder_layer: gradients are those that differences show") {
  Bench bench("oracle");
  const LayerForm form = GENERATE(LayerForm::pre_norm, LayerForm::sandwich, LayerForm::parallel);
  bench.ops().set_fused(GENERATE(false, true) ? OpSet().set() : OpSet());
  const Params params = layer_params(form);
  const Weights::Map tensors = weights(bench, form);
  const Shape shape{kBatch, kTokens, kChannels};
  const Tensor cotangent = bench.random(shape, 103);
  std::map<std::string, Tensor> inputs{{"hidden", bench.random(shape, 100)},
                                       {"cos", bench.random({1, kTokens, kWidth}, 101)},
                                       {"sin", bench.random({1, kTokens, kWidth}, 102)}};
  std::map<std::string, Tensor> gradients{{"d_hidden", bench.empty(shape)}}, moved;
  for (const auto& [name, t] : tensors) gradients["d_" + name] = bench.empty(t.shape());
  const auto loss = [&] {
    const Tensor out = bench.empty(shape);
    run_block(bench, "decoder_layer", params, {inputs, tensors, {{"out", out}}});
    const Values y = values_of(out), g = values_of(cotangent);
    return std::inner_product(y.begin(), y.end(), g.begin(), 0.0);
  };
  moved = tensors;
  moved["hidden"] = inputs.at("hidden");
  inputs["cotangent.out"] = cotangent;
  params.rewind();
  run_backward(*find_block("decoder_layer"),
               {bench.context(), params, weights_of(tensors), inputs, gradients});
  inputs.erase("cotangent.out");

  constexpr double kStep = 1e-5;
  for (const auto& [name, t] : moved) {
    const Values at = values_of(t), direction = values_of(bench.random(t.shape(), 104)),
                 d = values_of(gradients.at("d_" + name));
    const auto loss_at = [&](double by) {
      Values x = at;
      for (size_t i = 0; i < x.size(); ++i) x[i] += by * direction[i];
      bench.device().upload(t, x.data());
      return loss();
    };
    const double expected = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
    bench.device().upload(t, at.data());
    INFO(name);
    CHECK(std::inner_product(d.begin(), d.end(), direction.begin(), 0.0) ==
          Approx(expected).epsilon(1e-6).margin(1e-7));
  }
}

TEST_CASE("backward: what has no gradients is named, and operands stay as they are") {
  Bench bench("oracle");
  const Tensor x = bench.random({2, 3}, 1), g = bench.random({2, 3}, 2), d = bench.empty({2, 3});
  const auto run = [&](void (*block)(const BlockCall&)) {
    const BlockEntry entry{"made up", block, BitRule::none, RowRule::all, ""};
    run_backward(entry, {bench.context(),
                         Params(),
                         weights_of({}),
                         {{"x", x}, {"cotangent.out", g}},
                         {{"d_x", d}}});
  };
  CHECK_THAT(message_of<Unsupported>([&] {
               run([](const BlockCall& c) { c.ctx.ops.cumsum(c.output("out"), c.input("x"), 0); });
             }),
             Contains("op \"cumsum\" has no gradients"));
  CHECK_THAT(message_of<UsageError>([&] {
               run([](const BlockCall& c) {
                 c.ctx.ops.add(c.input("x"), c.input("x"), c.input("x"));
                 c.ctx.ops.copy(c.output("out"), c.input("x"));
               });
             }),
             Contains("writes an operand"));
  // In place, and twice.
  run([](const BlockCall& c) {
    const Tensor out = c.output("out");
    c.ctx.ops.add(out, c.input("x"), c.input("x"));
    c.ctx.ops.mul(out, out, out);
  });
  const Values by_x = values_of(d), at = values_of(x), by_out = values_of(g);
  for (size_t i = 0; i < at.size(); ++i) CHECK(by_x[i] == Approx(8 * at[i] * by_out[i]));
  CHECK_FALSE(find_block("causal_mask")->has_backward);
  CHECK(find_block("sdpa")->has_backward);
}

TEST_CASE(
    "decoder_layer: weights of a Gemma2 layer that are missing, left over or misnamed are named") {
  Bench bench("oracle");
  const Tensor hidden = bench.random({kBatch, kTokens, kChannels}, 100);
  const Tensor table = bench.random({1, kTokens, kWidth}, 101);
  const auto says = [&](const Params& params, const Weights::Map& tensors) {
    return message_of<Error>([&] {
      run_block(bench, "decoder_layer", params,
                {{{"hidden", hidden}, {"cos", table}, {"sin", table}},
                 tensors,
                 {{"out", bench.empty(hidden.shape())}}});
    });
  };
  // LLaMA's two norms given to Gemma2's form, and the reverse.
  CHECK_THAT(says(layer_params(LayerForm::sandwich), weights(bench, LayerForm::pre_norm)),
             Contains("\"pre_feedforward_layernorm.weight\" is missing"));
  CHECK_THAT(says(layer_params(LayerForm::pre_norm), weights(bench, LayerForm::sandwich)),
             Contains("the block does not use the weight(s) post_feedforward_layernorm.weight, "
                      "pre_feedforward_layernorm.weight"));
  Params params = layer_params(LayerForm::pre_norm);
  params.set("form", std::string("serial"));
  CHECK_THAT(says(params, weights(bench, LayerForm::pre_norm)),
             Contains("\"serial\"; known: pre_norm, sandwich, parallel"));
}

}  // namespace plumb::blocks::testing
