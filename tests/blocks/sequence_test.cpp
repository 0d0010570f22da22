// Properties that every block and model with a cache has, on every device that runs here: a
// sequence in pieces is the whole sequence, and the rows of a batch do not know of each other.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "harness/model/model_folder.h"
#include "harness/recording/recording.h"
#include "harness/recording/select.h"
#include "tests/blocks/support.h"

namespace plumb::blocks::testing {
namespace {

constexpr int64_t kBatch = 3, kTokens = 19;

// How a sequence is cut: one call; chunks; a prefill and single tokens.
using Pieces = std::vector<int64_t>;
const Pieces kWhole = {kTokens}, kChunks = {5, 1, 9, 4},
             kDecode = {9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

std::vector<std::string> devices() {
  std::vector<std::string> out = {"cpu", "oracle", "emu:32"};
#ifndef __SANITIZE_ADDRESS__  // slow there, and ci/test has all blocks of a model on emu:64
  out.push_back("emu:64");
#endif
  return out;
}

std::string any_device() { return GENERATE(from_range(devices())); }

// Sums in another order: some hundred roundings of numbers of this size.
double tolerance(const Bench& bench, const Tensor& like) {
  double largest = 0;
  for (const double v : values_of(like)) largest = std::max(largest, std::fabs(v));
  return largest * (bench.dtype() == DType::f64 ? 1e-12 : 2e-5);
}

// The parameters of a recorded block with those of its attention or mixer changed.
Params with_object(const Params& params, const char* object,
                   const std::function<void(Params&)>& change) {
  Params out = params;
  if (!out.has(object)) {
    change(out);
    return out;
  }
  Params inner = out.object(object);
  change(inner);
  out.set(object, inner);
  return out;
}

// A recorded block with a cache: its numbers and weights, run on sequences of our own.
class CachedBlock {
 public:
  CachedBlock(Bench& bench, const char* recording, const char* id) : bench_(bench) {
    const harness::Recording source =
        harness::Recording::open(harness::default_fixtures() / recording);
    for (const harness::Checkpoint& checkpoint : source.checkpoints()) {
      if (checkpoint.id == id) read(source, checkpoint);
    }
    REQUIRE(!block_.empty());
  }

  // hidden [B, T, C] of a whole sequence; the result of the calls on its pieces.
  Tensor run(const Tensor& hidden, const Pieces& pieces) {
    const Tensor out = bench_.empty(hidden.shape());
    std::map<std::string, Tensor> state;
    int64_t begin = 0, first_key = 0;
    for (const int64_t tokens : pieces) {
      call(out, hidden, begin, begin + tokens, first_key, state);
      begin += tokens;
      if (window_) first_key = std::max<int64_t>(begin - *window_ + 1, 0);
    }
    bench_.device().synchronize();
    return out;
  }

  Tensor input(uint32_t seed) { return bench_.random({kBatch, kTokens, channels_}, seed); }

 private:
  void read(const harness::Recording& source, const harness::Checkpoint& checkpoint) {
    block_ = checkpoint.block;
    params_ = checkpoint.params;
    for (const auto& [name, key] : checkpoint.weights) {
      const Tensor host = source.read(key);
      weights_[name] = bench_.from(host.shape(), values_of(host));
    }
    channels_ = source.tensor_info(checkpoint.inputs.at("hidden").tensor).shape[2];
    has_original_ = checkpoint.inputs.count("original") > 0;
    if (const Tensor k = weight("k_proj.weight"); k.defined()) {
      const Params& p = params_.has("attention") ? params_.object("attention") : params_;
      head_dim_ = p.integer("head_dim");
      kv_heads_ = k.dim(0) / head_dim_;
      window_ = p.integer_or_null("window");
      rotary_ = p.boolean_or("rotary", true);
    }
  }

  Tensor weight(std::string_view suffix) const {
    for (const auto& [name, tensor] : weights_) {
      if (name.ends_with(suffix)) return tensor;
    }
    return {};
  }

  Params params_of_call(int64_t begin, int64_t tokens, int64_t first_key) const {
    Params out = params_;
    if (kv_heads_ > 0) {
      Params cache("test");
      cache.set("kind", std::string("dynamic"));
      cache.set("window", window_ ? Params::Value(static_cast<double>(*window_)) : Params::Null{});
      out = with_object(out, "attention", [&](Params& p) {
        p.set("cache", cache);
        p.set("query_offset", static_cast<double>(begin));
        p.set("key_offset", static_cast<double>(first_key));
      });
    }
    if (weight("conv1d.weight").defined()) {
      const char* form = begin > 0 && tokens == 1 ? "step" : "chunk";
      out = with_object(out, "mamba", [&](Params& p) {
        p.set("form", std::string(form));
        p.set("dt_min", Params::Null{});  // steps do not clamp: sequences must not either
        p.set("dt_max", Params::Null{});
      });
    }
    return out;
  }

  void call(const Tensor& out, const Tensor& hidden, int64_t begin, int64_t end, int64_t first_key,
            std::map<std::string, Tensor>& state) {
    const int64_t batch = hidden.dim(0), tokens = end - begin;
    Operands operands;
    operands.weights = weights_;
    operands.inputs = state;
    operands.inputs["hidden"] = hidden.slice(1, begin, end);
    if (has_original_) operands.inputs["original"] = hidden.slice(1, begin, end);
    operands.outputs["out"] = out.slice(1, begin, end);
    std::map<std::string, Tensor> after;
    if (kv_heads_ > 0) {
      if (rotary_) {
        for (const uint32_t seed : {71u, 72u}) {
          operands.inputs[seed == 71 ? "cos" : "sin"] =
              bench_.random({1, kTokens, head_dim_}, seed, 0.7).slice(1, begin, end);
        }
      }
      const int64_t past = begin - first_key, total = past + tokens;
      const int64_t kept = window_ ? std::min(*window_ - 1, total) : total;
      after["keys"] = after["values"] = {};
      for (auto& [name, tensor] : after) tensor = bench_.empty({batch, kv_heads_, kept, head_dim_});
    }
    if (const Tensor conv = weight("conv1d.weight"); conv.defined()) {
      const Params& p = params_.has("mamba") ? params_.object("mamba") : params_;
      after["conv"] = bench_.empty({batch, conv.dim(0), conv.dim(2)});
      after["ssm"] =
          bench_.empty({batch, p.integer("heads"), p.integer("head_dim"), p.integer("state")});
    }
    state.clear();
    for (const auto& [name, tensor] : after) {
      operands.outputs[name + "_after"] = tensor;
      state[name + "_before"] = tensor;
    }
    run_block(bench_, block_, params_of_call(begin, tokens, first_key), operands);
  }

  Bench& bench_;
  std::string block_;
  Params params_;
  Weights::Map weights_;
  int64_t channels_ = 0, kv_heads_ = 0, head_dim_ = 0;
  std::optional<int64_t> window_;
  bool rotary_ = false, has_original_ = false;
};

struct Named {
  const char *recording, *id;
};

// Attention with and without a window, a layer of either, the mixer, the hybrid layer.
Named any_block() {
  return GENERATE(values<Named>({{"llama-a1/whole-f32", "model.layers.0.self_attn#0"},
                                 {"gemma2-a4/whole-f32", "model.layers.0.self_attn#0"},
                                 {"llama-a1/whole-f32", "model.layers.0#0"},
                                 {"gemma2-a4/whole-f32", "model.layers.0#0"},
                                 {"zamba2-a6/whole-f32", "model.layers.0.mamba#0"},
                                 {"zamba2-a6/whole-f32", "model.layers.1#0"}}));
}

// A copy whose other rows hold other numbers.
Tensor with_other_rows(Bench& bench, const Tensor& hidden, int64_t row) {
  Values values = values_of(hidden);
  const auto length = static_cast<int64_t>(values.size()) / hidden.dim(0);
  for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i) {
    if (i / length != row) values[static_cast<size_t>(i)] *= -3;
  }
  return bench.from(hidden.shape(), values);
}

// A tiny model and its logits of ids [B, T] that come in pieces.
class TinyModel {
 public:
  TinyModel(Bench& bench, const char* recording)
      : bench_(bench), folder_(harness::default_fixtures() / recording) {
    model_ = folder_.load(bench.device(), bench.dtype());
  }

  Tensor logits(const Values& ids, const Pieces& pieces, CacheKind kind = CacheKind::dynamic) {
    const int64_t vocabulary = model_->vocabulary();
    Sequence sequence = model_->begin(bench_.device(), kBatch, kTokens + 2, {}, kind);
    const Tensor out = bench_.empty({kBatch, kTokens, vocabulary});
    int64_t begin = 0;
    for (const int64_t tokens : pieces) {
      const Tensor piece = bench_.from(DType::i64, {kBatch, tokens}, columns(ids, begin, tokens));
      const Tensor part = bench_.empty({kBatch, tokens, vocabulary});
      model_->forward(bench_.context(), part, piece, sequence);
      bench_.ops().copy(out.slice(1, begin, begin + tokens), part);
      begin += tokens;
    }
    bench_.device().synchronize();
    return out;
  }

  // Ids of the rows; other ones in all rows but `same`.
  Values ids(int64_t same = -1) const {
    Values out;
    for (int64_t i = 0; i < kBatch * kTokens; ++i) {
      const bool other = same >= 0 && i / kTokens != same;
      out.push_back(static_cast<double>((i * 7 + (other ? 5 : 3)) % model_->vocabulary()));
    }
    return out;
  }

 private:
  static Values columns(const Values& ids, int64_t begin, int64_t tokens) {
    Values out;
    for (int64_t row = 0; row < kBatch; ++row) {
      const auto first = ids.begin() + row * kTokens + begin;
      out.insert(out.end(), first, first + tokens);
    }
    return out;
  }

  Bench& bench_;
  harness::ModelFolder folder_;
  std::unique_ptr<CausalLm> model_;
};

const char* any_model() {
  return GENERATE("llama-a1/whole-f32", "gemma2-a4/whole-f32", "zamba2-a6/whole-f32");
}

}  // namespace

TEST_CASE("blocks with a cache: chunks, and a prefill with steps, are the whole sequence") {
  Bench bench(any_device());
  const Named named = any_block();
  INFO(bench.device().name() << ": " << named.recording << ' ' << named.id);
  CachedBlock block(bench, named.recording, named.id);
  const Tensor hidden = block.input(1), whole = block.run(hidden, kWhole);
  CHECK(distance(block.run(hidden, kChunks), whole) <= tolerance(bench, whole));
  CHECK(distance(block.run(hidden, kDecode), whole) <= tolerance(bench, whole));
}

TEST_CASE("blocks with a cache: a row keeps its bits whatever the other rows are") {
  Bench bench(any_device());
  const Named named = any_block();
  INFO(bench.device().name() << ": " << named.recording << ' ' << named.id);
  CachedBlock block(bench, named.recording, named.id);
  const Tensor hidden = block.input(2);
  for (int64_t row = 0; row < kBatch; ++row) {
    const Tensor others = with_other_rows(bench, hidden, row);
    for (const Pieces& pieces : {kChunks, kDecode}) {
      const Tensor a = block.run(hidden, pieces), b = block.run(others, pieces);
      CHECK(same_values(a.slice(0, row, row + 1), b.slice(0, row, row + 1)));
      CHECK_FALSE(same_values(a, b));
    }
  }
}

TEST_CASE("tiny models: chunks, and a prefill with steps, are the whole sequence") {
  Bench bench(any_device());
  const char* name = any_model();
  INFO(bench.device().name() << ": " << name);
  TinyModel model(bench, name);
  const Tensor whole = model.logits(model.ids(), kWhole);
  // Over all layers.
  const double most = 10 * tolerance(bench, whole);
  for (const CacheKind kind : {CacheKind::dynamic, CacheKind::fixed}) {
    CHECK(distance(model.logits(model.ids(), kChunks, kind), whole) <= most);
    CHECK(distance(model.logits(model.ids(), kDecode, kind), whole) <= most);
  }
}

TEST_CASE("tiny models: a row keeps its bits whatever the other rows are") {
  Bench bench(any_device());
  const char* name = any_model();
  INFO(bench.device().name() << ": " << name);
  TinyModel model(bench, name);
  const Pieces pieces = GENERATE(kChunks, kDecode);
  const Tensor a = model.logits(model.ids(), pieces);
  for (int64_t row = 0; row < kBatch; ++row) {
    const Tensor b = model.logits(model.ids(row), pieces);
    CHECK(same_values(a.slice(0, row, row + 1), b.slice(0, row, row + 1)));
    CHECK_FALSE(same_values(a, b));
  }
}

}  // namespace plumb::blocks::testing
