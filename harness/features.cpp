#include "harness/features.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "blocks/kv_cache.h"
#include "kernels/error.h"

namespace plumb {
namespace {

// Where tanh(s / cap) departs visibly from s / cap: |s| beyond half the cap. After the cap that is
// tanh(0.5) of it.
constexpr double kKnee = 0.5;
const double kKneeAfterCap = std::tanh(kKnee);
constexpr double kShareBeyondKnee = 0.01;

class Finder {
 public:
  Finder(const Recording& recording, const Checkpoint& checkpoint)
      : recording_(recording), checkpoint_(checkpoint) {}

  Features take() { return std::move(features_); }

  void norm() {
    const double offset = has("weight_offset") ? number("weight_offset") : 0;
    seen("weight", !all_equal(weight("weight"), 1 - offset));
    if (offset != 0) seen("weight_offset", true);
    if (checkpoint_.weights.count("bias")) seen("bias", !all_equal(weight("bias"), 0));
    if (checkpoint_.block == "rms_norm" && size_of(recording_.dtype()) == 2) {
      seen("rounding_" + checkpoint_.params.string("rounding") + "_weight", true);
    }
    // eps moves a row by eps / (2 mean square): visible beyond the unit roundoff where that is
    // small.
    const Tensor x = input("x");
    double smallest = INFINITY;
    const int64_t width = x.dim(-1);
    for (int64_t row = 0; width > 0 && row < x.numel() / width; ++row) {
      double squares = 0;
      for (int64_t c = 0; c < width; ++c) squares += std::pow(at(x, row * width + c), 2);
      smallest = std::min(smallest, squares / static_cast<double>(width));
    }
    const bool visible = number("eps") / (2 * smallest) > unit_roundoff(recording_.dtype());
    // 16 bits hardly ever resolve eps: that is the dtype's blindness, not the recording's.
    if (visible || size_of(recording_.dtype()) > 2) seen("eps", visible);
  }

  void biases() {
    for (const auto& [name, key] : checkpoint_.weights) {
      if (name == "bias" || name.ends_with(".bias")) {
        seen("bias", !all_equal(recording_.read(key), 0));
        return;
      }
    }
  }

  void function() { seen(checkpoint_.params.string("function"), true); }

  void embedding() {
    const double scale = number("scale");
    if (scale == 1) return;
    const double exact = std::sqrt(static_cast<double>(weight("weight").dim(1)));
    seen("scale", true);
    seen("scale_rounding", scale != exact);
  }

  void frequencies() { seen("rope_" + checkpoint_.params.string("type"), true); }

  void table() {
    seen("position", !all_equal(input("positions"), 0));
    if (number("attention_scaling") != 1) seen("attention_scaling", true);
  }

  void rotary() {
    seen("rotary_" + checkpoint_.params.string("style"), !all_equal(input("sin"), 0));
    if (shape("cos")[-1] < shape("q")[-1]) seen("partial_rotary", true);
  }

  void softcap_block() {
    const Tensor x = input("x");
    seen("softcap", share_beyond(x, kKnee * number("cap")) >= kShareBeyondKnee);
  }

  void lm_head() {
    biases();
    const Tensor logits = recording_.read(output_ref("out").tensor);
    if (const auto cap = checkpoint_.params.number_or_null("softcap")) {
      seen("softcap", share_beyond(logits, kKneeAfterCap * *cap) >= kShareBeyondKnee);
    }
    const int64_t keep = checkpoint_.params.integer("logits_to_keep");
    if (keep > 0) seen("logits_to_keep", keep < shape("hidden")[1]);
  }

  void cache() {
    const int64_t total = recording_.output_shape(output_ref("keys"))[2];
    seen("append", checkpoint_.inputs.count("keys_before") > 0);
    if (const auto window = checkpoint_.params.integer_or_null("window")) {
      seen("eviction", total > *window - 1);
    }
  }

  void static_cache() { buffers(checkpoint_.params, shape("k")[2]); }

  // p: where the params of a static cache are; tokens: new ones.
  void buffers(const Params& p, int64_t tokens) {
    const int64_t slots = p.integer("max_length"), before = p.integer("seen");
    const int64_t after = before + tokens;
    seen("append", before > 0);
    if (after < slots) seen("unused_slots", true);
    if (p.integer_or_null("window")) {
      seen("sliding", true);
      if (after > slots) seen(before < slots ? "overflow" : "wrap_around", true);
    }
  }

  void conv_cache() {
    carried("conv_state", "state_before", "state_after");
    const bool start = checkpoint_.inputs.count("state_before") == 0;
    if (start && shape("x")[2] < checkpoint_.params.integer("kernel")) seen("zeros_in_front", true);
  }

  void concat() { axis(checkpoint_.params.integer("axis"), shape("a").rank()); }
  void slice() {
    axis(checkpoint_.params.integer("axis"), shape("x").rank());
    seen("offset", checkpoint_.params.integer("begin") > 0);
  }
  void permute() {
    const std::vector<double>& axes = checkpoint_.params.numbers("axes");
    const auto last = static_cast<double>(axes.size() - 1);
    seen(axes.back() == last ? "last_axis_stays" : "last_axis_moves", true);
  }

  void product_of_two() { seen("broadcast", !(shape("a") == shape("b"))); }

  void mask_fill() {
    seen("mask", !all_equal(input("mask"), 0) && !all_equal(input("mask"), 1));
    seen("broadcast", !(shape("x") == shape("mask")));
    if (std::isinf(number("value"))) seen("infinite", true);
  }

  void position_ids() {
    if (checkpoint_.inputs.count("token_valid")) padding("token_valid");
    else seen("offset", checkpoint_.params.integer("offset") > 0);
  }

  void conv1d() {
    if (checkpoint_.inputs.count("bias")) seen("bias", !all_equal(input("bias"), 0));
    if (checkpoint_.params.integer("padding") > 0) seen("padding", true);
  }

  void scale_block() { seen(checkpoint_.params.string("operation"), number("factor") != 1); }

  // queries, keys: extents; p: where the mask params are.
  void mask(const Params& p, int64_t queries, int64_t keys) {
    if (checkpoint_.inputs.count("mask")) {
      seen("explicit_mask", true);
      return;
    }
    const int64_t first_query = p.integer("query_offset"), first_key = p.integer("key_offset");
    if (p.boolean("causal")) {
      seen("causal", first_key + keys - 1 > first_query);
      if (queries > 1 && first_query > first_key) seen("causal_offset", true);
    }
    if (const auto window = p.integer_or_null("window")) {
      seen("window", first_query + queries - 1 - first_key >= *window);
    }
    if (!checkpoint_.inputs.count("key_valid")) return;
    const Tensor valid = input("key_valid");
    seen("padding", !all_equal(valid, 1));
    if (p.string("fully_masked") != "excluded" && p.boolean("causal")) {
      // The first query sees only keys up to its own slot.
      const int64_t visible = std::min(first_query - first_key + 1, keys);
      for (int64_t b = 0; b < valid.dim(0); ++b) {
        bool any = false;
        for (int64_t s = 0; s < visible; ++s) any = any || at(valid, b * keys + s) != 0;
        if (!any) return seen("fully_masked_" + p.string("fully_masked"), true);
      }
    }
  }

  // heads, kv_heads 0: unknown here.
  void attention(const Params& p, int64_t queries, int64_t keys, int64_t heads, int64_t kv_heads) {
    mask(p, queries, keys);
    if (heads != kv_heads) seen(kv_heads == 1 ? "mqa" : "gqa", true);
    seen("scale", keys > 1);
    if (const auto cap = p.number_or_null("softcap")) {
      seen("softcap", p.number("max_abs_score") > kKneeAfterCap * *cap);
    }
  }

  void sdpa() {
    attention(checkpoint_.params, shape("q")[2], shape("k")[2], shape("q")[1], shape("k")[1]);
  }

  void attention_block(const Params& p, const std::string& prefix) {
    const int64_t queries = shape("hidden")[1], head_dim = p.integer("head_dim");
    const int64_t past = checkpoint_.inputs.count("keys_before") ? shape("keys_before")[2] : 0;
    int64_t keys = past + queries;
    if (!p.is_null("cache") && p.object("cache").string("kind") == "static") {
      buffers(p.object("cache"), queries);
      keys = StaticKvCache::load(p.object("cache")).returned(queries);
    }
    const auto heads = [&](const char* projection) {
      return weight_shape(prefix + projection + ".weight")[0] / head_dim;
    };
    attention(p, queries, keys, heads("q_proj"), heads("k_proj"));
    biases();
  }

  void conv() {
    const std::string& key = weight_key("weight");
    const int64_t width = recording_.tensor_info(key).shape[2], tokens = shape("x")[1];
    if (checkpoint_.weights.count("bias")) seen("bias", !all_equal(weight("bias"), 0));
    seen("activation", true);
    carried("conv_state", "state_before", "state_after");
    if (!checkpoint_.inputs.count("state_before")) seen("start_of_sequence", true);
    if (tokens < width) seen("short_sequence", true);
    padding("token_valid");
  }

  void scan() {
    const Params& p = checkpoint_.params;
    const int64_t tokens = shape("x")[1];
    seen(p.string("form") + "_form", true);
    carried("ssm_state", "state_before", "state_after");
    if (p.string("form") == "chunk") {
      seen("several_chunks", tokens > p.integer("chunk_size"));
      clamp(p);
    }
    if (shape("b")[2] > 1) seen("groups", shape("b")[2] < shape("x")[2]);
    seen("skip", !all_equal(weight("D"), 0));
  }

  void gated_norm() {
    seen("weight", !all_equal(weight("weight"), 1));
    seen("gate", true);
    const int64_t channels = shape("x")[-1], width = checkpoint_.params.integer("group_size");
    if (channels != width) seen("groups", true);
    const Tensor x = input("x"), gate = input("gate");
    double smallest = INFINITY;
    for (int64_t group = 0; group < x.numel() / width; ++group) {
      double squares = 0;
      for (int64_t i = group * width; i < (group + 1) * width; ++i) {
        const double g = at(gate, i);
        squares += std::pow(at(x, i) * g / (1 + std::exp(-g)), 2);
      }
      smallest = std::min(smallest, squares / static_cast<double>(width));
    }
    const bool visible = number("eps") / (2 * smallest) > unit_roundoff(x.dtype());
    if (visible || size_of(x.dtype()) > 2) seen("eps", visible);
  }

  void mixer(const Params& p) {
    const int64_t tokens = shape("hidden")[1];
    seen(p.string("form") + "_form", true);
    carried("ssm_state", "ssm_before", "ssm_after");
    if (p.string("form") == "chunk") seen("several_chunks", tokens > p.integer("chunk_size"));
    if (p.integer("groups") > 1) seen("groups", true);
    padding("token_valid");
  }

  void adapters(const Params& p) {
    const Params& attention = p.has("attention") ? p.object("attention") : p;
    if (attention.boolean_or("adapters", false)) seen("adapters", true);
    if (!attention.boolean_or("rotary", true)) seen("no_rotary", true);
  }

  // The second block's weights, or adapters of a later call than the first.
  void shared(const Params& p) {
    adapters(p);
    if (p.integer("call") > 0) seen("later_call", true);
    if (p.integer("block") > 0) seen("second_block", true);
  }

  void causal_mask() {
    mask(checkpoint_.params, checkpoint_.params.integer("queries"),
         checkpoint_.params.integer("keys"));
  }

 private:
  // A state that is given, and one that is kept.
  void carried(const std::string& feature, const char* before, const char* after) {
    if (checkpoint_.inputs.count(before)) seen(feature + "_before", !all_equal(input(before), 0));
    if (checkpoint_.outputs.count(after)) seen(feature + "_after", true);
  }

  void axis(int64_t along, int rank) { seen(along == rank - 1 ? "last_axis" : "outer_axis", true); }

  void padding(const char* name) {
    if (checkpoint_.inputs.count(name)) seen("padding", !all_equal(input(name), 1));
  }

  // Whether the lower limit of the time steps is above some of them.
  void clamp(const Params& p) {
    const auto least = p.number_or_null("dt_min");
    if (!least) return;
    const Tensor dt = input("dt"), bias = weight("dt_bias");
    const int64_t heads = bias.numel();
    bool clamped = false;
    for (int64_t i = 0; i < dt.numel() && !clamped; ++i) {
      clamped = std::log1p(std::exp(at(dt, i) + at(bias, i % heads))) < *least;
    }
    seen("clamp", clamped);
  }

  bool has(const char* name) const { return checkpoint_.params.has(name); }
  double number(const char* name) const { return checkpoint_.params.number(name); }
  const TensorRef& input_ref(const std::string& name) const {
    return need(checkpoint_.inputs, "input", name);
  }
  const std::string& weight_key(const std::string& name) const {
    return need(checkpoint_.weights, "weight", name);
  }
  const OutputRef& output_ref(const std::string& name) const {
    return need(checkpoint_.outputs, "output", name);
  }
  Tensor input(const std::string& name) const { return recording_.read(input_ref(name).tensor); }
  const Shape& shape(const std::string& name) const {
    return recording_.tensor_info(input_ref(name).tensor).shape;
  }
  Tensor weight(const std::string& name) const { return recording_.read(weight_key(name)); }
  const Shape& weight_shape(const std::string& name) const {
    return recording_.tensor_info(weight_key(name)).shape;
  }
  template <class Map>
  const typename Map::mapped_type& need(const Map& map, const char* role,
                                        const std::string& name) const {
    const auto found = map.find(name);
    if (found == map.end()) {
      throw BadInput(text(checkpoint_.params.where(), ": ", role, " \"", name, "\" is missing"));
    }
    return found->second;
  }
  static double at(const Tensor& t, int64_t i) {
    return load(t.dtype(), t.data<char>() + i * size_of(t.dtype()));
  }
  static bool all_equal(const Tensor& t, double value) {
    for (int64_t i = 0; i < t.numel(); ++i) {
      if (at(t, i) != value) return false;
    }
    return true;
  }
  static double share_beyond(const Tensor& t, double limit) {
    int64_t count = 0;
    for (int64_t i = 0; i < t.numel(); ++i) count += std::fabs(at(t, i)) > limit;
    return static_cast<double>(count) / static_cast<double>(std::max<int64_t>(t.numel(), 1));
  }
  void seen(const std::string& feature, bool exercised) {
    (exercised ? features_.exercised : features_.blind).push_back(feature);
  }

  const Recording& recording_;
  const Checkpoint& checkpoint_;
  Features features_;
};

struct Row {
  std::string_view block;
  std::function<void(Finder&, const Checkpoint&)> find;
};

const std::vector<Row>& table() {
  static const std::vector<Row> rows = {
      {"rms_norm", [](Finder& f, const Checkpoint&) { f.norm(); }},
      {"layer_norm", [](Finder& f, const Checkpoint&) { f.norm(); }},
      {"linear", [](Finder& f, const Checkpoint&) { f.biases(); }},
      {"glu_mlp", [](Finder& f, const Checkpoint&) { f.function(), f.biases(); }},
      {"activation", [](Finder& f, const Checkpoint&) { f.function(); }},
      {"glu_activation", [](Finder& f, const Checkpoint&) { f.function(); }},
      {"embedding", [](Finder& f, const Checkpoint&) { f.embedding(); }},
      {"rotary_frequencies", [](Finder& f, const Checkpoint&) { f.frequencies(); }},
      {"rotary_table", [](Finder& f, const Checkpoint&) { f.table(); }},
      {"rotary", [](Finder& f, const Checkpoint&) { f.rotary(); }},
      {"softcap", [](Finder& f, const Checkpoint&) { f.softcap_block(); }},
      {"lm_head", [](Finder& f, const Checkpoint&) { f.lm_head(); }},
      {"kv_cache", [](Finder& f, const Checkpoint&) { f.cache(); }},
      {"static_kv_cache", [](Finder& f, const Checkpoint&) { f.static_cache(); }},
      {"conv_cache", [](Finder& f, const Checkpoint&) { f.conv_cache(); }},
      {"concat", [](Finder& f, const Checkpoint&) { f.concat(); }},
      {"slice", [](Finder& f, const Checkpoint&) { f.slice(); }},
      {"permute", [](Finder& f, const Checkpoint&) { f.permute(); }},
      {"mul", [](Finder& f, const Checkpoint&) { f.product_of_two(); }},
      {"mask_fill", [](Finder& f, const Checkpoint&) { f.mask_fill(); }},
      {"position_ids", [](Finder& f, const Checkpoint&) { f.position_ids(); }},
      {"conv1d", [](Finder& f, const Checkpoint&) { f.conv1d(); }},
      {"scale", [](Finder& f, const Checkpoint&) { f.scale_block(); }},
      {"causal_mask", [](Finder& f, const Checkpoint&) { f.causal_mask(); }},
      {"sdpa", [](Finder& f, const Checkpoint&) { f.sdpa(); }},
      {"attention",
       [](Finder& f, const Checkpoint& c) {
         f.attention_block(c.params, "");
         f.adapters(c.params);
       }},
      {"causal_conv1d", [](Finder& f, const Checkpoint&) { f.conv(); }},
      {"ssd_scan", [](Finder& f, const Checkpoint&) { f.scan(); }},
      {"gated_rms_norm", [](Finder& f, const Checkpoint&) { f.gated_norm(); }},
      {"mamba2_mixer", [](Finder& f, const Checkpoint& c) { f.mixer(c.params); }},
      {"mamba_layer", [](Finder& f, const Checkpoint& c) { f.mixer(c.params.object("mamba")); }},
      {"shared_transformer",
       [](Finder& f, const Checkpoint& c) {
         f.attention_block(c.params.object("attention"), "self_attn.");
         f.shared(c.params);
       }},
      {"hybrid_layer",
       [](Finder& f, const Checkpoint& c) {
         f.attention_block(c.params.object("attention"), "shared_transformer.self_attn.");
         f.mixer(c.params.object("mamba"));
         f.shared(c.params);
       }},
      {"decoder_layer",
       [](Finder& f, const Checkpoint& c) {
         f.attention_block(c.params.object("attention"), "self_attn.");
       }},
  };
  return rows;
}

}  // namespace

Features features_of(const Recording& recording, const Checkpoint& checkpoint) {
  Finder finder(recording, checkpoint);
  for (const Row& row : table()) {
    if (row.block == checkpoint.block) row.find(finder, checkpoint);
  }
  checkpoint.params.rewind();
  return finder.take();
}

}  // namespace plumb
