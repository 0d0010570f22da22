// Faults planted in one layer of a whole model: the chain names the layer and the block.
#include <algorithm>
#include <cstring>

#include "harness/chain/chain.h"
#include "harness/recording/select.h"
#include "tests/catch.h"
#include "tests/faults/cache_copies.h"
#include "tests/faults/faulty_device.h"
#include "tests/faults/wrong_ops.h"
#include "tests/faults/wrong_state_space.h"

namespace plumb::harness::testing {
namespace {

Recording fixture(const std::string& name) { return Recording::open(default_fixtures() / name); }

CheckpointResult chain_of(const Recording& recording, Hooks hooks) {
  const auto cpu = open_device("cpu", 1), oracle = open_device("oracle");
  FaultyDevice device(*cpu, std::move(hooks));
  return run_chain(recording, device, *oracle, {});
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() &&
         std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())) == 0;
}

// A tensor that a checkpoint refers to.
Tensor weight_of(const Recording& recording, const std::string& id, const std::string& name) {
  for (const Checkpoint& c : recording.checkpoints()) {
    if (c.id == id) return recording.read(c.weights.at(name));
  }
  throw std::runtime_error(id);
}

// How often something happened in this run of a block or model: isolated checkpoints reset it.
int64_t& count(Call& c, const char* of) {
  Tensor& kept = c.kept[of];
  if (!kept.defined()) {
    kept = host_tensor(DType::i64, {1});
    *kept.data<int64_t>() = 0;
  }
  return *kept.data<int64_t>();
}

// Queries of a layer's attention, to know it by: alone they are as recorded, in a chain nearly so.
class KnownQueries {
 public:
  KnownQueries(const Recording& recording, const std::string& attention) {
    for (const Checkpoint& c : recording.checkpoints()) {
      if (c.id.starts_with(attention + ":sdpa#")) {
        queries_.push_back(recording.read(c.inputs.at("q").tensor));
      }
    }
    REQUIRE(!queries_.empty());
  }

  bool has(Ops& ops, const Tensor& q) const {
    const Values values = values_of(copied(ops, q));
    for (const Tensor& known : queries_) {
      if (!(known.shape() == q.shape())) continue;
      const Values expected = values_of(known);
      double error = 0, size = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        error += (values[i] - expected[i]) * (values[i] - expected[i]);
        size += expected[i] * expected[i];
      }
      if (error < 1e-4 * size) return true;
    }
    return false;
  }

 private:
  std::vector<Tensor> queries_;
};

using Change = std::function<void(AttentionMask&, AttentionSpec&)>;

Hooks attention_fault(const Recording& recording, const std::string& attention,
                      const Change& change) {
  return {.sdpa = [known = KnownQueries(recording, attention), change](
                      Call& c, auto& out, auto& q, auto& k, auto& v, AttentionMask m, auto& p) {
    AttentionSpec spec;
    if (!known.has(c.ops, q)) return c.ops.sdpa(out, q, k, v, m, p);
    if (!m.causal && !m.window) {  // a step over the slots that it sees: the same as a window
      m.query_offset = k.dim(2) - 1;
      m.window = k.dim(2);
    }
    change(m, spec);
    wrong_sdpa(c.ops, out, q, k, v, m, p, spec);
  }};
}

void check_named(const CheckpointResult& result, const std::string& layer, const std::string& part,
                 Diagnosis diagnosis) {
  CAPTURE(result.reason, result.details);
  REQUIRE(result.status == Status::fail);
  REQUIRE(result.chain);
  CHECK(result.chain->first_divergence.starts_with(layer));
  CHECK(result.chain->culprit.starts_with(part));
  for (const ChainRow& row : result.chain->rows) {
    if (row.checkpoint != result.chain->first_divergence) continue;
    CHECK(name_of(row.diagnosis) == name_of(diagnosis));
  }
}

TEST_CASE("a float64 chain's shadow has the rotary tables of the chain") {
  const auto device = open_device("oracle"), oracle = open_device("oracle");
  ReplayOptions options;
  options.shadow = true;
  for (const char* name : {"llama-a1/decode-f32", "zamba2-a6/decode-f32"}) {
    const CheckpointResult result = run_chain(fixture(name), *device, *oracle, options);
    CHECK(result.status == Status::pass);
    CHECK(result.determinism == Determinism::not_measured);
    int64_t attention = 0;
    for (const ChainRow& row : result.chain->rows) {
      INFO(row.checkpoint << ' ' << row.shadow);
      CHECK(row.diagnosis == Diagnosis::clean);
      attention += row.block == "decoder_layer" || row.block == "hybrid_layer";
    }
    CHECK(attention > 0);
  }
}

TEST_CASE("a chain of correct code passes") {
  const char* const name =
      GENERATE("llama-a1/decode-f32", "llama-a1/decode-bf16", "gemma2-a4/decode-f32",
               "gemma2-a4/decode-bf16", "gemma2-a4/chunked-f32", "llama-a3-dynamic/decode-f32",
               "llama-a1/decode-f32-static", "llama-a1/chunked-f32-static",
               "llama-a1/padded-decode-f32-static", "gemma2-a4/decode-f32-static",
               "gemma2-a4/decode-bf16-static", "gemma2-a4/chunked-f32-static",
               "gemma2-a4/padded-decode-f32-static", "mistral-b1/decode-f32",
               "zamba2-a6/decode-f32", "zamba2-a6/decode-bf16");
  const Recording recording = fixture(name);
  const auto oracle = open_device("oracle");
  const char* const device_name = GENERATE("cpu", "emu:64");
  const auto device = open_device(device_name, 1);
  const CheckpointResult result = run_chain(recording, *device, *oracle, {});
  INFO(name << " on " << device_name << ": " << result.reason);
  CHECK(result.status == Status::pass);
  REQUIRE(result.chain);
  CHECK(result.chain->culprit.empty());
  CHECK(result.chain->onset.empty());
  const auto makes_tables = [](const std::string& it) { return it.starts_with("rotary_table/"); };
  CHECK(std::any_of(result.impl.begin(), result.impl.end(), makes_tables));
}

TEST_CASE("float64 against float64: one model, two derivations") {
  const char* const name =
      GENERATE("llama-a1/decode-f32", "llama-a1/chunked-f32", "llama-a1/padded-decode-f32",
               "llama-a3-dynamic/decode-f32", "llama-a3-longrope/decode-f32",
               "llama-a1/decode-f32-static", "gemma2-a4/decode-f32-static", "gemma2-a4/decode-f32",
               "gemma2-a4/chunked-f32", "gemma2-a4/padded-decode-f32", "mistral-b1/decode-f32",
               "zamba2-a6/decode-f32", "zamba2-a6/chunked-f32", "zamba2-a6/padded-decode-f32");
  const Recording recording = fixture(name);
  const auto oracle = open_device("oracle");
  const CheckpointResult result = run_chain(recording, *oracle, *oracle, {});
  INFO(name << ": " << result.reason);
  CHECK(result.status == Status::pass);
  REQUIRE(result.chain);
  for (const ChainRow& row : result.chain->rows) {
    INFO(row.checkpoint);
    CHECK(row.chained <= 1e-11);
    CHECK(row.chained_limit < 1.1e-11);
  }
}

TEST_CASE("float64 needs constants that were not rounded further") {
  const auto oracle = open_device("oracle");
  const CheckpointResult result = run_chain(fixture("llama-a1/decode-bf16"), *oracle, *oracle, {});
  CHECK(result.status == Status::unsupported);
  CHECK(result.reason.starts_with("a float64 chain"));
}

TEST_CASE("kernel: rotary tables, which no row of the chain has") {
  const Recording recording = fixture("gemma2-a4/decode-bf16");
  const Hooks hooks{
      .rotary_table = [](Call& c, auto& cos, auto& sin, auto& positions, auto& inv, auto scaling) {
        const Tensor off = c.arena.take(inv.dtype(), inv.shape());
        c.ops.scale(off, inv, 1.01, ScaleOperation::multiply);
        c.ops.rotary_table(cos, sin, positions, off, scaling);
      }};
  const CheckpointResult result = chain_of(recording, hooks);
  CAPTURE(result.reason, result.details);
  CHECK(result.status == Status::fail);
  REQUIRE(result.chain);
  CHECK(result.chain->culprit == "model.rotary_emb#0");
  CHECK(result.chain->culprit_block == "rotary_table");
  CHECK(result.reason.starts_with("first divergence model.rotary_emb#0, culprit model.rotary"));
}

TEST_CASE("kernel: window one shorter in one layer") {
  const Recording recording = fixture("gemma2-a4/decode-f32");
  const std::string attention = "model.layers.2.self_attn";
  const Hooks hooks = attention_fault(
      recording, attention, [](AttentionMask& m, AttentionSpec&) { m.window = *m.window - 1; });
  check_named(chain_of(recording, hooks), "model.layers.2#", attention + ":sdpa#",
              Diagnosis::kernel);
}

TEST_CASE("kernel: softcap after the mask in one layer") {
  const Recording recording = fixture("gemma2-a4/decode-f32");
  const std::string attention = "model.layers.2.self_attn";
  const Hooks hooks = attention_fault(
      recording, attention,
      [](AttentionMask&, AttentionSpec& spec) { spec.cap = AttentionSpec::Cap::after_mask; });
  check_named(chain_of(recording, hooks), "model.layers.2#", attention + ":sdpa#",
              Diagnosis::kernel);
}

constexpr int64_t kLayers = 3;  // of llama-a1

TEST_CASE("wiring: the position of one layer's rotary embedding restarts in every step") {
  const Recording recording = fixture("llama-a1/decode-f32");
  const Hooks hooks{.rotary = [](Call& c, auto& out, auto& x, auto& cos, auto& sin, auto style) {
    const bool layer_2 = c.index / 2 % kLayers == 2;  // a call for q, one for k
    if (layer_2 && x.dim(2) == 1) return c.ops.copy(out, x);
    c.ops.rotary(out, x, cos, sin, style);
  }};
  check_named(chain_of(recording, hooks), "model.layers.2#1", "model.layers.2.self_attn:rotary",
              Diagnosis::wiring);
}

TEST_CASE("wiring: one layer's keys are written after they are read") {
  const Recording recording =
      fixture(GENERATE("llama-a1/decode-bf16", "llama-a1/decode-f32-static"));
  Hooks hooks;
  hooks.copy = [](Call& c, auto& out, auto& x) {
    // A cache's slots are strided; the keys of a layer come before its values.
    const bool keys = !out.contiguous() && out.rank() == 4 && ++count(c, "slots") % 2 == 1;
    if (!keys || count(c, "attentions") % kLayers != 2) return c.ops.copy(out, x);
    c.kept["late"] = out;
    c.kept["keys"] = copied(c.ops, x);
  };
  hooks.sdpa = [](Call& c, auto& out, auto& q, auto& k, auto& v, auto& m, auto& p) {
    c.ops.sdpa(out, q, k, v, m, p);
    if (count(c, "attentions")++ % kLayers == 2 && c.kept.count("late")) {
      c.ops.copy(c.kept.at("late"), c.kept.at("keys"));
    }
  };
  check_named(chain_of(recording, hooks), "model.layers.2#", "model.layers.2.self_attn:kv_cache",
              Diagnosis::wiring);
}

TEST_CASE("wiring: stored keys of one layer change in a later step") {
  const Recording recording = fixture("llama-a1/decode-f32");
  const Hooks hooks{.sdpa = [](Call& c, auto& out, auto& q, auto& k, auto& v, auto& m, auto& p) {
    c.ops.sdpa(out, q, k, v, m, p);
    const bool decodes = q.dim(2) == 1 && k.dim(2) > 1;
    if (count(c, "attentions")++ % kLayers != 2 || !decodes) return;
    edit(k.slice(2, 0, 1), [](Values& values) { values[0] += 1e-6; });
  }};
  const CheckpointResult result = chain_of(recording, hooks);
  CHECK(result.status == Status::fail);
  CHECK(result.chain->culprit.starts_with("model.layers.2.self_attn:kv_cache#1"));
  CHECK(result.reason.find("first divergence") == 0);
}

// Copies into the slots of caches, of one layer's steps in a chain: alone a layer is the first.
using SlotCopy = std::function<void(Call&, const Tensor& out, const Tensor& x, int64_t number)>;

Hooks step_copies(int64_t layers, int64_t layer, const SlotCopy& wrong) {
  Hooks hooks;
  hooks.copy = [=](Call& c, auto& out, auto& x) {
    const bool step = out.rank() == 4 && !out.contiguous() && x.dim(2) == 1;
    if (!step || count(c, "attentions") % layers != layer) return c.ops.copy(out, x);
    wrong(c, out, x, count(c, "copies")++);
  };
  hooks.sdpa = [](Call& c, auto& out, auto& q, auto& k, auto& v, auto& m, auto& p) {
    c.ops.sdpa(out, q, k, v, m, p);
    ++count(c, "attentions");
    count(c, "copies") = 0;
  };
  return hooks;
}

TEST_CASE("wiring: steps write one layer's keys one slot too far into a static cache") {
  const Recording recording = fixture("llama-a1/decode-f32-static");
  const Hooks hooks = step_copies(kLayers, 2, [](Call& c, auto& out, auto& x, int64_t number) {
    if (number == 0) copy_slots(out, 1, x, 0, 1);
    else c.ops.copy(out, x);
  });
  const CheckpointResult result = chain_of(recording, hooks);
  const char* const name = "model.layers.2.self_attn:kv_cache#1";
  CHECK(result.status == Status::fail);
  CHECK(result.chain->first_divergence == name);
  CHECK(result.chain->culprit == name);
  CHECK(result.details.at(0).ends_with("changed that this call has to leave as they are"));
  for (const ChainRow& row : result.chain->rows) {
    if (row.checkpoint != name) continue;
    const bool keys = row.output == "keys_after";
    CHECK((row.changed > 0) == keys);  // a slot that was unused
    CHECK((row.diagnosis == Diagnosis::wiring) == keys);
  }
}

TEST_CASE("wiring: a static cache's window does not wrap in one layer") {
  const Recording recording = fixture("gemma2-a4/decode-f32-static");
  constexpr int64_t kFour = 4;  // layers; keys, values, both once more a window further
  const Hooks hooks = step_copies(kFour, 2, [](Call& c, auto& out, auto& x, int64_t number) {
    if (number != 2) c.ops.copy(out, x);
  });
  // Four tokens come before the first one that the window's first slots do not hold.
  check_named(chain_of(recording, hooks), "model.layers.2#3", "model.layers.2.self_attn:kv_cache",
              Diagnosis::wiring);
}

// The state space of one layer, known by its weights.
using Scan = std::function<void(Call&, const Tensor& y, const Tensor& after, SsdInputs, SsdParams)>;

Hooks scan_fault(const Recording& recording, const std::string& mixer, const Scan& wrong) {
  const Tensor bias = weight_of(recording, mixer + ":ssd_scan#0", "dt_bias");
  return {.ssd_scan = [bias, wrong](Call& c, auto& y, auto& after, auto& in, auto& p) {
    if (same_bytes(in.dt_bias, bias)) wrong(c, y, after, in, p);
    else c.ops.ssd_scan(y, after, in, p);
  }};
}

TEST_CASE("kernel: clamp of dt in the decode steps of one layer") {
  const Recording recording = fixture("zamba2-a6/decode-f32");
  const Hooks hooks = scan_fault(recording, "model.layers.2.mamba",
                                 [](Call&, auto& y, auto& after, auto in, auto p) {
                                   wrong_scan(y, after, in, p, {.clamps_step = true});
                                 });
  check_named(chain_of(recording, hooks), "model.layers.2", "model.layers.2.mamba:ssd_scan#1",
              Diagnosis::kernel);
}

TEST_CASE("kernel: D skip of one layer dropped") {
  const Recording recording = fixture("zamba2-a6/decode-f32");
  const Hooks hooks = scan_fault(recording, "model.layers.2.mamba",
                                 [](Call& c, auto& y, auto& after, auto in, auto p) {
                                   in.d = mapped(c.ops, in.d, [](double) { return 0.0; });
                                   c.ops.ssd_scan(y, after, in, p);
                                 });
  check_named(chain_of(recording, hooks), "model.layers.2", "model.layers.2.mamba:ssd_scan#0",
              Diagnosis::kernel);
}

TEST_CASE("wiring: a shared block with the adapter of its first call in its second") {
  const Recording recording = fixture("zamba2-a6/decode-f32");
  const auto adapter = [&](int call, const std::string& layer) {
    const std::string name = "linear_q_adapter_list." + std::to_string(call);
    return weight_of(recording,
                     "model.layers." + layer + ".shared_transformer.self_attn." + name + "#0",
                     "0.weight");
  };
  const Hooks hooks{.linear = [first = adapter(0, "1"), second = adapter(1, "3")](
                                  Call& c, auto& out, auto& x, auto& w, auto& b) {
    if (same_bytes(w, first)) c.kept["adapter"] = w;
    const bool swapped = same_bytes(w, second) && c.kept.count("adapter");
    c.ops.linear(out, x, swapped ? c.kept.at("adapter") : w, b);
  }};
  check_named(chain_of(recording, hooks), "model.layers.3#0",
              "model.layers.3.shared_transformer.self_attn.linear_q_adapter_list",
              Diagnosis::wiring);
}

}  // namespace
}  // namespace plumb::harness::testing
