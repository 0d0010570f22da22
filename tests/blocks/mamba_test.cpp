// Mamba2's mixer and the layers around it: what must be equal whichever way a sequence is cut.
#include "kernels/core/error.h"
#include "tests/blocks/support.h"

using Catch::Contains;

namespace plumb::blocks::testing {
namespace {

constexpr int64_t kHidden = 12, kHeads = 4, kHeadDim = 6, kGroups = 2, kColumns = 5, kWidth = 4;
constexpr int64_t kInner = kHeads * kHeadDim, kMixed = kInner + 2 * kGroups * kColumns;

Params mixer_params(const char* form) {
  Params norm = params_of({{"eps", 1e-5}, {"group_size", double{kInner / kGroups}}});
  return params_of({{"form", std::string(form)},
                    {"chunk_size", 8.0},
                    {"dt_min", Params::Null{}},
                    {"dt_max", Params::Null{}},
                    {"heads", double{kHeads}},
                    {"groups", double{kGroups}},
                    {"state", double{kColumns}},
                    {"head_dim", double{kHeadDim}},
                    {"norm", norm},
                    {"activation", std::string("silu")}});
}

Weights::Map mixer_weights(Bench& bench) {
  const int64_t rows = kInner + kMixed + kHeads;
  return {{"in_proj.weight", bench.random({rows, kHidden}, 1, 0.3)},
          {"conv1d.weight", bench.random({kMixed, 1, kWidth}, 2, 0.5)},
          {"conv1d.bias", bench.random({kMixed}, 3, 0.3)},
          {"A_log", bench.random({kHeads}, 4, 0.5)},
          {"D", bench.random({kHeads}, 5)},
          {"dt_bias", bench.random({kHeads}, 6)},
          {"norm.weight", bench.random({kInner}, 7)},
          {"out_proj.weight", bench.random({kHidden, kInner}, 8, 0.3)}};
}

struct States {
  Tensor conv, ssm;
};
States empty_states(Bench& bench, int64_t batch) {
  return {bench.empty({batch, kMixed, kWidth}), bench.empty({batch, kHeads, kHeadDim, kColumns})};
}

double tolerance(const Bench& bench) { return bench.dtype() == DType::f64 ? 1e-12 : 2e-5; }

// Runs the mixer on tokens [begin, end) and moves the states on.
void mix(Bench& bench, const char* form, const Tensor& out, const Tensor& hidden,
         const Weights::Map& weights, const States* before, const States& after,
         const Tensor& token_valid = {}) {
  Operands operands;
  operands.inputs["hidden"] = hidden;
  if (before) {
    operands.inputs["conv_before"] = before->conv;
    operands.inputs["ssm_before"] = before->ssm;
  }
  if (token_valid.defined()) operands.inputs["token_valid"] = token_valid;
  operands.weights = weights;
  operands.outputs = {{"out", out}, {"conv_after", after.conv}, {"ssm_after", after.ssm}};
  run_block(bench, "mamba2_mixer", mixer_params(form), operands);
}

TEST_CASE("mixer: a sequence in pieces, the last ones single tokens, is the whole sequence") {
  Bench bench(GENERATE(std::string("cpu"), std::string("oracle")));
  const Weights::Map weights = mixer_weights(bench);
  constexpr int64_t kTokens = 20;
  const Tensor hidden = bench.random({2, kTokens, kHidden}, 9);
  const Tensor whole = bench.empty(hidden.shape()), parts = bench.empty(hidden.shape());
  const States last = empty_states(bench, 2);
  mix(bench, "chunk", whole, hidden, weights, nullptr, last);

  const int64_t first = GENERATE(1, 2, 11);
  States before = empty_states(bench, 2);
  const auto piece = [&](const Tensor& t, int64_t begin, int64_t end) {
    return t.slice(1, begin, end);
  };
  mix(bench, "chunk", piece(parts, 0, first), piece(hidden, 0, first), weights, nullptr, before);
  for (int64_t begin = first; begin < kTokens;) {
    const int64_t end = begin < 15 ? 15 : begin + 1;
    const States after = empty_states(bench, 2);
    mix(bench, end - begin == 1 ? "step" : "chunk", piece(parts, begin, end),
        piece(hidden, begin, end), weights, &before, after);
    before = after;
    begin = end;
  }
  CHECK(distance(parts, whole) < tolerance(bench));
  CHECK(distance(before.ssm, last.ssm) < tolerance(bench));
  CHECK(distance(before.conv, last.conv) < tolerance(bench));
}

TEST_CASE("mixer: left padding changes nothing but itself, rows do not mix") {
  Bench bench(GENERATE(std::string("cpu"), std::string("oracle")));
  const Weights::Map weights = mixer_weights(bench);
  constexpr int64_t kTokens = 9, kPads = 3;
  const Tensor hidden = bench.random({2, kTokens, kHidden}, 10);
  Values keep(2 * kTokens, 1.0);
  for (size_t t = 0; t < kPads; ++t) keep[t] = 0;
  const Tensor valid = bench.from(DType::boolean, {2, kTokens}, keep);
  const Tensor padded = bench.empty(hidden.shape());
  const States after = empty_states(bench, 2);
  mix(bench, "chunk", padded, hidden, weights, nullptr, after, valid);

  const Tensor alone = bench.empty({1, kTokens - kPads, kHidden});
  const States alone_after = empty_states(bench, 1);
  mix(bench, "chunk", alone, hidden.slice(0, 0, 1).slice(1, kPads, kTokens), weights, nullptr,
      alone_after);
  CHECK(distance(padded.slice(0, 0, 1).slice(1, kPads, kTokens), alone) < tolerance(bench));
  CHECK(distance(after.ssm.slice(0, 0, 1), alone_after.ssm) < tolerance(bench));

  const Tensor second = bench.empty({1, kTokens, kHidden});
  mix(bench, "chunk", second, hidden.slice(0, 1, 2), weights, nullptr, alone_after);
  CHECK(distance(padded.slice(0, 1, 2), second) < tolerance(bench));
}

TEST_CASE("mixer: sizes that do not fit are named") {
  Bench bench("cpu");
  Weights::Map weights = mixer_weights(bench);
  weights["in_proj.weight"] = bench.random({50, kHidden}, 1);
  const Tensor hidden = bench.random({1, 2, kHidden}, 9), out = bench.empty(hidden.shape());
  const std::string message = message_of<BadInput>(
      [&] { mix(bench, "chunk", out, hidden, weights, nullptr, empty_states(bench, 1)); });
  CHECK_THAT(message, Contains("in_proj has 50 rows") && Contains("need 72"));
}

TEST_CASE("mamba_layer: the transformer's output enters the mixer, not the residual") {
  Bench bench(GENERATE(std::string("cpu"), std::string("oracle")));
  const Tensor hidden = bench.random({1, 5, kHidden}, 11),
               other = bench.random({1, 5, kHidden}, 12);
  const Tensor weight = bench.random({kHidden}, 13);
  const Params norm =
      params_of({{"eps", 1e-5}, {"weight_offset", 0.0}, {"rounding", std::string("before")}});
  Operands layer;
  layer.inputs = {{"hidden", hidden}, {"transformer", other}};
  for (const auto& [name, t] : mixer_weights(bench)) layer.weights["mamba." + name] = t;
  layer.weights["input_layernorm.weight"] = weight;
  const Tensor out = bench.empty(hidden.shape());
  layer.outputs = {{"out", out}};
  run_block(bench, "mamba_layer", params_of({{"norm", norm}, {"mamba", mixer_params("chunk")}}),
            layer);

  const Tensor sum = bench.empty(hidden.shape()), expected = bench.empty(hidden.shape());
  bench.ops().add(sum, hidden, other);
  bench.ops().rms_norm(sum, sum, weight, {1e-5});
  mix(bench, "chunk", expected, sum, mixer_weights(bench), nullptr, empty_states(bench, 1));
  bench.ops().add(expected, expected, hidden);
  CHECK(distance(out, expected) < tolerance(bench));
}

}  // namespace
}  // namespace plumb::blocks::testing
