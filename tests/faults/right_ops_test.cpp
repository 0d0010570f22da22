// The machinery of the fault tests adds no fault of its own: right ops in the place of wrong ones
// are green on every checkpoint. Without this a fault could be killed for the wrong reason.
#include "tests/catch.h"
#include "tests/faults/cache_copies.h"
#include "tests/faults/kills.h"
#include "tests/faults/wrong_ops.h"

namespace plumb::harness::testing {
namespace {

// The fault is taken for none; returns how many checkpoints its op took part in.
int check_harmless(const std::string& block, const Hooks& hooks, bool growing_cache_only = false) {
  INFO(block);
  Fault nothing{block, "nothing", hooks};
  nothing.growing_cache_only = growing_cache_only;
  const Kills kills = kills_of(nothing, true);
  INFO(kills.reason);
  CHECK(kills.killed == 0);
  for (const std::string& text : kills.wrong) CHECK(text.empty());
  return kills.reached;
}

template <auto Op>
auto right() {
  return [](Call& c, const auto&... arguments) { (c.ops.*Op)(arguments...); };
}

Hooks right_primitives() {
  Hooks h;
  h.embedding = right<&Ops::embedding>();
  h.rms_norm = right<&Ops::rms_norm>();
  h.layer_norm = right<&Ops::layer_norm>();
  h.linear = right<&Ops::linear>();
  h.activation = right<&Ops::activation>();
  h.add = right<&Ops::add>();
  h.mul = right<&Ops::mul>();
  h.scale = right<&Ops::scale>();
  h.softmax = right<&Ops::softmax>();
  h.matmul = right<&Ops::matmul>();
  h.masked_add = right<&Ops::masked_add>();
  h.repeat_heads = right<&Ops::repeat_heads>();
  h.rotary_table = right<&Ops::rotary_table>();
  h.rotary = right<&Ops::rotary>();
  h.causal_mask = right<&Ops::causal_mask>();
  h.copy = right<&Ops::copy>();
  h.cast = right<&Ops::cast>();
  h.mask_rows = right<&Ops::mask_rows>();
  h.div = right<&Ops::div>();
  h.add_scalar = right<&Ops::add_scalar>();
  h.transpose = right<&Ops::transpose>();
  h.mask_fill = right<&Ops::mask_fill>();
  h.position_ids = right<&Ops::position_ids>();
  h.causal_conv1d = right<&Ops::causal_conv1d>();
  h.ssd_scan = right<&Ops::ssd_scan>();
  h.gated_rms_norm = right<&Ops::gated_rms_norm>();
  return h;
}

Hooks right_fused() {
  Hooks h = right_primitives();
  h.gated_activation = right<&Ops::gated_activation>();
  h.softcap = right<&Ops::softcap>();
  h.add_rms_norm = right<&Ops::add_rms_norm>();
  h.sdpa = right<&Ops::sdpa>();
  return h;
}

}  // namespace

TEST_CASE("hooks that do the right thing are green everywhere") {
  for (const std::string& block : suite().blocks()) {
    // Frequencies are computed on the host: no op takes part.
    const bool has_ops = block != "rotary_frequencies";
    CHECK((check_harmless(block, right_primitives()) > 0) == has_ops);
    CHECK((check_harmless(block, right_fused()) > 0) == has_ops);
  }
}

TEST_CASE("plain versions of the ops are right when nothing is made wrong") {
  CHECK(check_harmless("rms_norm", {.rms_norm = [](Call&, auto& out, auto& x, auto& w, auto& p) {
                         NormSpec spec{.eps = p.eps, .offset = p.weight_offset};
                         spec.round_normalised = p.rounding == WeightRounding::before;
                         wrong_norm(out, x, w, {}, spec);
                       }}) > 0);
  CHECK(check_harmless("layer_norm",
                       {.layer_norm = [](Call&, auto& out, auto& x, auto& w, auto& b, double eps) {
                         wrong_norm(out, x, w, b,
                                    {.eps = eps, .subtract_mean = true, .centred_variance = true});
                       }}) > 0);
  const Hooks linear = {.linear = [](Call&, auto& out, auto& x, auto& w, auto& b) {
    wrong_linear(out, x, w, b, {});
  }};
  CHECK(check_harmless("linear", linear) > 0);
  CHECK(check_harmless("lm_head", linear) > 0);
  CHECK(check_harmless("rotary",
                       {.rotary = [](Call&, auto& out, auto& x, auto& cos, auto& sin, auto style) {
                         wrong_rotary(out, x, cos, sin, style, {});
                       }}) > 0);
  CHECK(check_harmless("activation", {.activation = [](Call& c, auto& out, auto& x, Activation f) {
                         put(out, values_of(mapped(
                                      c.ops, x, [f](double v) { return exact_activation(f, v); })));
                       }}) > 0);
  CHECK(check_harmless(
            "sdpa", {.sdpa = [](Call& c, auto& out, auto& q, auto& k, auto& v, auto& m, auto& p) {
              wrong_sdpa(c.ops, out, q, k, v, m, p, {});
            }}) > 0);
}

TEST_CASE("copies of a cache are distinguished") {
  int seen[3] = {};
  const Hooks hooks = {.copy = [&seen](Call& c, auto& out, auto& x) {
    const CacheCopy copy = cache_copy(c, out, x);
    ++seen[static_cast<int>(copy.role)];
    switch (copy.role) {
      case CopyRole::before: return copy_slots(copy.all, 0, x, 0, x.dim(2));
      case CopyRole::fresh: return copy_slots(copy.all, copy.past, x, 0, x.dim(2));
      case CopyRole::keep: return copy_slots(out, 0, copy.all, copy.total - out.dim(2), out.dim(2));
    }
  }};
  for (const char* block : {"kv_cache", "attention", "decoder_layer"}) {
    CHECK(check_harmless(block, hooks, true) > 0);
  }
  for (const int count : seen) CHECK(count > 0);
}

TEST_CASE("truncation goes toward zero and by less than one unit in the last place") {
  CHECK(truncated_to(DType::bf16, 1.0 + 0x1.fp-8) == 1.0);
  CHECK(truncated_to(DType::bf16, -1.0 - 0x1.8p-7) == -1.0 - 0x1p-7);
  CHECK(truncated_to(DType::f32, 1.0 - 0x1p-30) == 1.0 - 0x1p-24);
  CHECK(truncated_to(DType::f16, 0x1.8p-24) == 0x1p-24);  // subnormal
  CHECK(truncated_to(DType::f16, 0.0) == 0.0);
}

}  // namespace plumb::harness::testing
