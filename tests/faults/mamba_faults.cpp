// Faults of Mamba2's parts, and of the mixer and the layers that are made of them.
#include <algorithm>

#include "tests/faults/fault.h"
#include "tests/faults/wrong_state_space.h"

namespace plumb::harness::testing {
namespace {

Fault conv_fault(const char* block, const char* name, const ConvSpec& spec,
                 bool narrow_only = false) {
  return {block,
          name,
          {.causal_conv1d = [spec](Call&, auto& out, auto& after, auto& x, auto& w, auto& b,
                                   auto& before,
                                   auto& f) { wrong_conv(out, after, x, w, b, before, f, spec); }},
          narrow_only};
}

struct ConvOperands {
  Tensor x, weight, bias, before;
  std::optional<Activation> function;
};
// The right convolution of other operands.
Fault conv_operands(const char* block, const char* name,
                    const std::function<void(Call&, ConvOperands&)>& change) {
  return {block,
          name,
          {.causal_conv1d = [change](Call& c, auto& out, auto& after, auto& x, auto& w, auto& b,
                                     auto& before, auto& f) {
            ConvOperands o{x, w, b, before, f};
            change(c, o);
            c.ops.causal_conv1d(out, after, o.x, o.weight, o.bias, o.before, o.function);
          }}};
}

Fault scan_fault(const char* block, const char* name, const ScanSpec& spec,
                 bool narrow_only = false) {
  return {block,
          name,
          {.ssd_scan = [spec](Call&, auto& y, auto& after, auto& in,
                              auto& p) { wrong_scan(y, after, in, p, spec); }},
          narrow_only};
}

// The right scan of other operands.
Fault scan_operands(const char* block, const char* name,
                    const std::function<void(Call&, SsdInputs&, SsdParams&)>& change) {
  return {block, name, {.ssd_scan = [change](Call& c, auto& y, auto& after, auto in, auto p) {
            change(c, in, p);
            c.ops.ssd_scan(y, after, in, p);
          }}};
}

Fault gated_fault(const char* block, const char* name, const GatedSpec& spec,
                  bool narrow_only = false) {
  return {block,
          name,
          {.gated_rms_norm = [spec](Call&, auto& out, auto& x, auto& gate, auto& w,
                                    auto& p) { wrong_gated_norm(out, x, gate, w, p, spec); }},
          narrow_only};
}

void all_zero(Values& v) { v.assign(v.size(), 0); }
void moved_by_one(Values& v) { std::rotate(v.begin(), v.begin() + 1, v.end()); }

void no_state(Call& c, SsdInputs& in, SsdParams&) {
  if (in.state.defined()) in.state = changed(c.ops, in.state, all_zero);
}

std::vector<Fault> conv_faults(const char* block) {
  return {
      conv_fault(block, "taps flipped", {.flipped = true}),
      conv_fault(block, "oldest tap dropped", {.dropped = 1}),
      conv_fault(block, "sees the next token", {.late = 1}),
      conv_fault(block, "state keeps the first columns", {.keeps_first = true}),
      conv_fault(block, "state lacks the current token", {.missing = 1}),
      conv_operands(block, "bias dropped", [](Call&, ConvOperands& o) { o.bias = {}; }),
      conv_operands(block, "activation missing", [](Call&, ConvOperands& o) { o.function = {}; }),
      conv_operands(block, "gelu for silu",
                    [](Call&, ConvOperands& o) { o.function = Activation::gelu; }),
      conv_operands(block, "conv state ignored", [](Call&, ConvOperands& o) { o.before = {}; }),
      conv_operands(block, "weights of the next channel",
                    [](Call& c, ConvOperands& o) {
                      const auto width = static_cast<std::ptrdiff_t>(o.weight.dim(2));
                      o.weight = changed(c.ops, o.weight, [width](Values& v) {
                        std::rotate(v.begin(), v.begin() + width, v.end());
                      });
                    }),
      conv_fault(block, "products rounded to storage", {.round_products = true}, true),
  };
}

std::vector<Fault> scan_faults(const char* block) {
  return {
      scan_operands(block, "b and c exchanged",
                    [](Call&, SsdInputs& in, SsdParams&) { std::swap(in.b, in.c); }),
      scan_operands(
          block, "D skip dropped",
          [](Call& c, SsdInputs& in, SsdParams&) { in.d = changed(c.ops, in.d, all_zero); }),
      scan_operands(block, "dt_bias dropped",
                    [](Call& c, SsdInputs& in, SsdParams&) {
                      in.dt_bias = changed(c.ops, in.dt_bias, all_zero);
                    }),
      scan_operands(block, "A of the next head",
                    [](Call& c, SsdInputs& in, SsdParams&) {
                      in.a_log = changed(c.ops, in.a_log, moved_by_one);
                    }),
      scan_operands(block, "clamp missing in chunks",
                    [](Call&, SsdInputs&, SsdParams& p) { p.dt_min.reset(); }),
      scan_operands(block, "scan state ignored", no_state),
      scan_fault(block, "clamp in decode", {.clamps_step = true}),
      scan_fault(block, "D skip of dt x", {.skip_of_input = true}),
      scan_fault(block, "softplus missing", {.softplus = false}),
      scan_fault(block, "groups tiled instead of repeated", {.tiled_groups = true}),
      scan_fault(block, "state does not decay", {.decay = 0}),
      scan_fault(block, "input not times dt", {.input_by_dt = false}),
      scan_fault(block, "state lost between chunks", {.forgets_every = 8}),
      scan_fault(block, "state kept without the last token", {.keeps_decay_only = true}),
      scan_fault(block, "state stored in bf16", {.state_dtype = DType::bf16}),
      scan_fault(block, "step without its roundings", {.round_step = false}, true),
  };
}

std::vector<Fault> gated_faults(const char* block) {
  return {
      gated_fault(block, "gate after the norm", {.gate_after = true}),
      gated_fault(block, "gate missing", {.gated = false}),
      gated_fault(block, "sigmoid for silu", {.sigmoid = true}),
      gated_fault(block, "one mean for all groups", {.one_group = true}),
      gated_fault(block, "first group's mean for all groups", {.first_group = true}),
      gated_fault(block, "weight ignored", {.weight = false}),
      gated_fault(block, "eps missing", {.eps = 0.0}),
      gated_fault(block, "eps 100 times too large", {.eps = 1e-3}),
      gated_fault(block, "last term dropped", {.dropped = 1}),
      gated_fault(block, "weight before the cast", {.round_normalised = false}, true),
      {block,
       "weights of the next channel",
       {.gated_rms_norm =
            [](Call& c, auto& out, auto& x, auto& gate, auto& w, auto& p) {
              c.ops.gated_rms_norm(out, x, gate, changed(c.ops, w, moved_by_one), p);
            }}},
  };
}

// What composites show of their parts: where the parts' own checkpoints see more, they are named
// there.
std::vector<Fault> mixer_faults(const char* block) {
  std::vector<Fault> out = conv_faults(block);
  out.pop_back();
  const std::vector<Fault> scans = scan_faults(block), norms = gated_faults(block);
  for (const Fault& fault : scans) {
    if (!fault.narrow_only && fault.name != "state stored in bf16") out.push_back(fault);
  }
  for (const Fault& fault : norms) {
    const bool shared_name = fault.name == "weights of the next channel";
    if (!fault.narrow_only && !shared_name && !fault.name.starts_with("eps")) out.push_back(fault);
  }
  out.push_back({block, "padding not masked", {.mask_rows = [](Call& c, auto& y, auto& x, auto&) {
                   c.ops.copy(y, x);
                 }}});
  return out;
}

}  // namespace

// A convolution alone has neither a state nor an activation.
std::vector<Fault> conv1d_faults() {
  const char* block = "conv1d";
  std::vector<Fault> out = conv_faults(block);
  std::erase_if(out, [](const Fault& fault) {
    return fault.name.find("state") != std::string::npos || fault.name == "activation missing" ||
           fault.name == "gelu for silu" || fault.name == "products rounded to storage" ||
           fault.name == "taps flipped" || fault.name == "bias dropped";
  });
  return out;
}

std::vector<Fault> causal_conv1d_faults() { return conv_faults("causal_conv1d"); }
std::vector<Fault> ssd_scan_faults() { return scan_faults("ssd_scan"); }
std::vector<Fault> gated_rms_norm_faults() { return gated_faults("gated_rms_norm"); }
std::vector<Fault> mamba2_mixer_faults() { return mixer_faults("mamba2_mixer"); }

// The states that a layer keeps are outputs of its parts and of the mixer only.
std::vector<Fault> mamba_faults_of_layer(const char* block) {
  std::vector<Fault> out = mixer_faults(block);
  std::erase_if(out, [](const Fault& fault) {
    return fault.name.starts_with("state keeps") || fault.name.starts_with("state lacks") ||
           fault.name.starts_with("state kept");
  });
  return out;
}

std::vector<Fault> mamba_layer_faults() {
  const char* block = "mamba_layer";
  std::vector<Fault> out = mamba_faults_of_layer(block);
  out.push_back({block, "residual missing", {.add = [](Call& c, auto& y, auto&, auto& b) {
                   c.ops.copy(y, b);
                 }}});
  out.push_back({block,
                 "input norm skipped",
                 {.rms_norm = [](Call& c, auto& y, auto& x, auto&, auto&) { c.ops.copy(y, x); }}});
  return out;
}

}  // namespace plumb::harness::testing
