#include "harness/referee/mutants.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "harness/referee/rotary_table.h"

namespace plumb::harness {
namespace {

using Tensors = std::map<std::string, Tensor>;

constexpr std::string_view kWrongTheta = "theta 1 percent too large";

// Applies to the params and to all objects within them; whether one of them was changed.
bool everywhere(blocks::Params& params, const std::function<bool(blocks::Params&)>& edit) {
  bool changed = edit(params);
  for (auto [name, value] : std::map(params.values().begin(), params.values().end())) {
    blocks::Params* nested = std::get_if<blocks::Params>(&value);
    if (!nested || !everywhere(*nested, edit)) continue;
    params.set(name, *nested);
    changed = true;
  }
  return changed;
}

// Null where it is absent, or no T.
template <class T>
const T* value_of(const blocks::Params& params, std::string_view name) {
  const auto found = params.values().find(name);
  return found == params.values().end() ? nullptr : std::get_if<T>(&found->second);
}

using Edit = bool (*)(Mutant&);

template <class Change>
bool change_number(Mutant& m, const char* name, Change change) {
  return everywhere(m.checkpoint.params, [&](blocks::Params& p) {
    const double* before = value_of<double>(p, name);
    if (!before) return false;
    const double old = *before, now = change(old);
    p.set(name, now);
    return now != old;
  });
}

bool leave_out_number(Mutant& m, const char* name) {
  return everywhere(m.checkpoint.params, [&](blocks::Params& p) {
    if (!value_of<double>(p, name)) return false;
    p.set(name, blocks::Params::Null());
    return true;
  });
}

bool change_word(Mutant& m, const char* name, const std::map<std::string, std::string>& other) {
  return everywhere(m.checkpoint.params, [&](blocks::Params& p) {
    const std::string* before = value_of<std::string>(p, name);
    const auto now = before ? other.find(*before) : other.end();
    if (now == other.end()) return false;
    p.set(name, std::string(now->second));
    return true;
  });
}

// Where attention or a mask says which keys a query sees; a cache has a window of its own.
bool is_causal(const blocks::Params& params) {
  const bool* causal = value_of<bool>(params, "causal");
  return causal && *causal;
}

bool add_to(blocks::Params& params, const char* name, double more) {
  const double* before = value_of<double>(params, name);
  if (!before || *before + more < 1) return false;
  params.set(name, *before + more);
  return true;
}

bool change_window(Mutant& m, double more) {
  return everywhere(m.checkpoint.params,
                    [&](blocks::Params& p) { return is_causal(p) && add_to(p, "window", more); });
}

bool see_next_key(Mutant& m) {
  return everywhere(m.checkpoint.params, [](blocks::Params& p) {
    if (!is_causal(p) || !add_to(p, "query_offset", 1)) return false;
    add_to(p, "window", 1);  // the oldest key that it sees stays
    return true;
  });
}

Tensor copied(const Tensor& t) {
  const Tensor out = host_tensor(t.dtype(), t.shape());
  std::memcpy(out.raw(), t.raw(), static_cast<size_t>(t.bytes()));
  return out;
}

double at(const Tensor& t, int64_t i) {
  return load(t.dtype(), t.data<char>() + i * size_of(t.dtype()));
}

// Every element by what `change` makes of its index; whether one is another then.
template <class Change>
bool change_elements(Tensor& t, Change change) {
  const Tensor out = copied(t);
  for (int64_t i = 0; i < t.numel(); ++i) {
    store(t.dtype(), out.data<char>() + i * size_of(t.dtype()), change(i));
  }
  const bool changed = std::memcmp(out.raw(), t.raw(), static_cast<size_t>(t.bytes())) != 0;
  t = out;
  return changed;
}

bool is_named(std::string_view name, std::string_view last) {
  if (!name.ends_with(last)) return false;
  return name.size() == last.size() || name[name.size() - last.size() - 1] == '.';
}

// All operands of that name, those of parts included.
bool change_named(Tensors& tensors, std::string_view last,
                  const std::function<bool(Tensor&)>& change) {
  bool changed = false;
  for (auto& [name, t] : tensors) changed = (is_named(name, last) && change(t)) || changed;
  return changed;
}

bool fill(Tensors& tensors, std::string_view last, double value) {
  return change_named(
      tensors, last, [&](Tensor& t) { return change_elements(t, [&](int64_t) { return value; }); });
}

bool fill_any(Tensors& tensors, std::initializer_list<std::string_view> names, double value) {
  bool changed = false;
  for (const std::string_view name : names) changed = fill(tensors, name, value) || changed;
  return changed;
}

bool swap_named(Tensors& tensors, const std::string& a, const std::string& b) {
  bool changed = false;
  for (auto& [name, t] : tensors) {
    if (!is_named(name, a)) continue;
    const auto other = tensors.find(name.substr(0, name.size() - a.size()) + b);
    if (other == tensors.end() || !(other->second.shape() == t.shape())) continue;
    std::swap(t, other->second);
    changed = true;
  }
  return changed;
}

// The tables' row of the token behind it; the last token keeps its own.
bool later_positions(Tensor& table) {
  const int64_t rows = table.rank() < 2 ? 1 : table.dim(-2), width = table.dim(-1);
  const Tensor before = table;
  return change_elements(
      table, [&](int64_t i) { return at(before, i / width % rows + 1 < rows ? i + width : i); });
}

bool shift_positions(Mutant& m) {
  Tensors& in = m.operands.inputs;
  const bool cos = change_named(in, "cos", later_positions);
  const bool sin = change_named(in, "sin", later_positions);
  const bool positions = change_named(in, "positions", [](Tensor& t) {
    const Tensor before = t;
    return change_elements(t, [&](int64_t i) { return at(before, i) + 1; });
  });
  return cos || sin || positions;
}

bool swap_rotary_style(Mutant& m) {
  return everywhere(m.checkpoint.params, [](blocks::Params& p) {
    const std::string* style = value_of<std::string>(p, "style");
    const bool* rotary = value_of<bool>(p, "rotary");
    if (!style || (rotary && !*rotary)) return false;
    p.set("style", std::string(*style == "half" ? "interleaved" : "half"));
    return true;
  });
}

// Query heads get the keys and values of the next group.
bool rotate_heads(Mutant& m) {
  Tensors& in = m.operands.inputs;
  const auto q = in.find("q"), k = in.find("k");
  if (m.checkpoint.block != "sdpa" || q == in.end() || k == in.end()) return false;
  const int64_t heads = k->second.dim(1);
  if (heads == 1 || heads == q->second.dim(1)) return false;
  const auto next = [&](Tensor& t) {
    const int64_t head = t.dim(2) * t.dim(3);
    const Tensor before = t;
    return change_elements(t, [&](int64_t i) {
      const bool last = i / head % heads == heads - 1;
      return at(before, last ? i - (heads - 1) * head : i + head);
    });
  };
  return next(k->second) && next(in.at("v"));
}

bool drop_last_term(Mutant& m) {
  if (m.checkpoint.block != "linear" && m.checkpoint.block != "lm_head") return false;
  return change_named(m.operands.weights, "weight", [](Tensor& t) {
    const int64_t width = t.dim(-1);
    const Tensor before = t;
    return change_elements(t,
                           [&](int64_t i) { return i % width == width - 1 ? 0 : at(before, i); });
  });
}

bool reverse_taps(Mutant& m) {
  const bool alone = m.checkpoint.block == "causal_conv1d";
  return change_named(m.operands.weights, alone ? "weight" : "conv1d.weight", [](Tensor& t) {
    const int64_t width = t.dim(-1);
    const Tensor before = t;
    return change_elements(
        t, [&](int64_t i) { return at(before, i - i % width + (width - 1 - i % width)); });
  });
}

bool leave_out_norm_weight(Mutant& m) {
  const blocks::Params& p = m.checkpoint.params;
  if (!value_of<double>(p, "eps")) return false;
  const double* offset = value_of<double>(p, "weight_offset");
  return fill(m.operands.weights, "weight", 1 - (offset ? *offset : 0));
}

// Smaller than the smallest normal number of its dtype, and not zero.
bool flush_denormals(Tensor& t) {
  if (!is_floating(t.dtype())) return false;
  const double least = std::ldexp(1, info(t.dtype()).min_exponent);
  const Tensor before = t;
  return change_elements(t, [&](int64_t i) {
    const double x = at(before, i);
    return x != 0 && std::fabs(x) < least ? 0 : x;
  });
}

// The tables that were made from these positions, of a theta that is 1 percent larger: frequency i
// of n is theta^(-i / n).
bool change_theta(Mutant& m, const HostOperands& maker, double attention_scaling) {
  const Tensor &positions = maker.inputs.at("positions"), &inv_freq = maker.inputs.at("inv_freq");
  const int64_t n = inv_freq.numel();
  const auto angle = [&](int64_t element) {
    const int64_t i = element % n, token = element / (2 * n);
    return at(positions, token) * at(inv_freq, i) *
           std::pow(1.01, -static_cast<double>(i) / static_cast<double>(n));
  };
  const auto table_of = [&](double (*function)(double)) {
    return [&, function](Tensor& t) {
      return t.numel() == 2 * n * positions.numel() &&
             change_elements(t, [&](int64_t i) { return function(angle(i)) * attention_scaling; });
    };
  };
  const bool cos = change_named(m.operands.inputs, "cos", table_of(std::cos));
  return change_named(m.operands.inputs, "sin", table_of(std::sin)) && cos;
}

struct Bug {
  std::string_view name;
  Edit plant;
  std::string_view feature = {};  // that a checkpoint cannot see where this passes
};

constexpr Bug kBugs[] = {
    {"eps ten times as large",
     [](Mutant& m) { return change_number(m, "eps", [](double eps) { return 10 * eps; }); }, "eps"},
    {"norm weight w for 1 + w, or 1 + w for w",
     [](Mutant& m) { return change_number(m, "weight_offset", [](double x) { return 1 - x; }); }},
    {"norm weight on the other side of the cast",
     [](Mutant& m) {
       const DType dtype = m.operands.outputs.front().dtype;
       return size_of(dtype) == 2 &&  // a wider cast rounds nothing
              change_word(m, "rounding", {{"before", "after"}, {"after", "before"}});
     }},
    {"norm weight left out", leave_out_norm_weight, "weight"},
    {"rotary pairs for halves, or halves for pairs", swap_rotary_style},
    {"positions one later", shift_positions},
    {"theta ten times as large",
     [](Mutant& m) { return change_number(m, "theta", [](double x) { return 10 * x; }); }},
    {kWrongTheta,
     [](Mutant& m) { return change_number(m, "theta", [](double x) { return 1.01 * x; }); }},
    {"scaling of the rotary tables left out",
     [](Mutant& m) { return change_number(m, "attention_scaling", [](double) { return 1.0; }); },
     "attention_scaling"},
    {"scale left out",
     [](Mutant& m) { return change_number(m, "scale", [](double) { return 1.0; }); }, "scale"},
    {"scale 1 percent too large",
     [](Mutant& m) { return change_number(m, "scale", [](double x) { return 1.01 * x; }); }},
    {"softcap left out",
     [](Mutant& m) {
       const bool nullable = leave_out_number(m, "softcap");
       return change_number(m, "cap", [](double) { return 1e30; }) || nullable;
     },
     "softcap"},
    {"each query sees the next key", see_next_key, "causal"},
    {"window one key longer", [](Mutant& m) { return change_window(m, 1); }, "longer_window"},
    {"window one key shorter", [](Mutant& m) { return change_window(m, -1); }, "window"},
    {"padding taken for tokens",
     [](Mutant& m) {
       return fill_any(m.operands.inputs, {"key_valid", "token_valid"}, 1);
     },
     "padding"},
    {"query heads on another group's keys", rotate_heads, "gqa"},
    {"GeLU by tanh for GeLU by erf, or the reverse",
     [](Mutant& m) {
       return change_word(m, "function",
                          {{"gelu", "gelu_pytorch_tanh"}, {"gelu_pytorch_tanh", "gelu"}});
     }},
    {"gate and up swapped",
     [](Mutant& m) {
       const bool inputs = swap_named(m.operands.inputs, "gate", "up");
       return swap_named(m.operands.weights, "gate_proj.weight", "up_proj.weight") || inputs;
     }},
    {"last term of the sum left out", drop_last_term},
    {"bias left out", [](Mutant& m) { return fill(m.operands.weights, "bias", 0); }, "bias"},
    {"state not carried over",
     [](Mutant& m) {
       return fill_any(m.operands.inputs, {"state_before", "conv_before", "ssm_before"}, 0);
     }},
    {"taps of the convolution reversed", reverse_taps},
    {"skip D left out", [](Mutant& m) { return fill(m.operands.weights, "D", 0); }, "skip"},
    {"time step not clamped", [](Mutant& m) { return leave_out_number(m, "dt_min"); }, "clamp"},
    {"denormals of the output flushed to zero",
     [](Mutant& m) {
       m.store = flush_denormals;
       const auto& all = m.operands.outputs;  // the others' are too small for a recording
       return std::any_of(all.begin(), all.end(), [](auto& it) { return it.dtype == DType::f16; });
     },
     "denormals"},
};

}  // namespace

std::vector<std::string_view> known_bugs() {
  std::vector<std::string_view> out;
  for (const Bug& bug : kBugs) out.push_back(bug.name);
  return out;
}

std::string_view feature_behind(std::string_view bug) {
  const auto found = std::find_if(std::begin(kBugs), std::end(kBugs),
                                  [&](const Bug& it) { return it.name == bug; });
  return found == std::end(kBugs) ? "" : found->feature;
}

std::vector<Mutant> mutants_of(const Recording& recording, const Checkpoint& checkpoint,
                               const HostOperands& operands) {
  std::vector<Mutant> out;
  for (const Bug& bug : kBugs) {
    Mutant mutant{bug.name, checkpoint, operands};
    if (bug.plant(mutant)) out.push_back(std::move(mutant));
  }
  if (const Checkpoint* maker = rotary_table_of(recording, checkpoint)) {
    Mutant mutant{kWrongTheta, checkpoint, operands};
    const double scaling = maker->params.number("attention_scaling");
    if (change_theta(mutant, read_operands(recording, *maker, DType::f32), scaling)) {
      out.push_back(std::move(mutant));
    }
  }
  return out;
}

}  // namespace plumb::harness
