// Faults of the rotary frequencies and of the table of cosines and sines.
#include <cmath>

#include "tests/faults/fault.h"
#include "tests/faults/wrong_ops.h"

namespace plumb::harness::testing {
namespace {

// Numbers that the frequencies are computed from, for one rope type ("": any).
Fault numbers_fault(const char* type, const char* name,
                    const std::function<bool(blocks::Params&)>& change) {
  const std::string wanted = type;
  return {"rotary_frequencies", name, {}, false, [wanted, change](blocks::Params& p) {
            return (wanted.empty() || p.string("type") == wanted) && change(p);
          }};
}

std::function<bool(blocks::Params&)> times(const char* name, double factor) {
  return [=](blocks::Params& p) {
    p.set(name, p.number(name) * factor);
    return true;
  };
}

std::function<bool(blocks::Params&)> assigned(const char* name, double value) {
  return [=](blocks::Params& p) {
    p.set(name, value);
    return true;
  };
}

std::function<bool(blocks::Params&)> exchanged(const char* a, const char* b) {
  return [=](blocks::Params& p) {
    const double first = p.number(a);
    p.set(a, p.number(b));
    p.set(b, first);
    return true;
  };
}

bool scaling_ignored(blocks::Params& p) {
  blocks::Params plain(p.where());
  plain.set("type", std::string("default"));
  for (const char* name : {"dim", "theta"}) plain.set(name, p.number(name));
  p = plain;
  return true;
}

bool length_is_trained(blocks::Params& p) {
  p.set("length", p.number("max_position"));
  return true;
}

bool long_and_short_exchanged(blocks::Params& p) {
  const std::vector<double> first = p.numbers("long_factor");
  p.set("long_factor", p.numbers("short_factor"));
  p.set("short_factor", first);
  return true;
}

bool bands_meet(blocks::Params& p) {
  p.set("low_freq_factor", p.number("high_freq_factor"));
  return true;
}

bool truncation_flipped(blocks::Params& p) {
  p.set("truncate", !p.boolean("truncate"));
  return true;
}

}  // namespace

std::vector<Fault> rotary_frequencies_faults() {
  return {
      numbers_fault("", "theta 1 % larger", times("theta", 1.01)),
      numbers_fault("linear", "linear: scaling ignored", scaling_ignored),
      numbers_fault("linear", "linear: multiplied by the factor",
                    [](blocks::Params& p) {
                      p.set("factor", 1 / p.number("factor"));
                      return true;
                    }),
      numbers_fault("dynamic", "dynamic: base never grows", length_is_trained),
      numbers_fault("dynamic", "dynamic: length one too large",
                    [](blocks::Params& p) {
                      p.set("length", p.number("length") + 1);
                      return true;
                    }),
      numbers_fault("llama3", "llama3: scaling ignored", scaling_ignored),
      numbers_fault("llama3", "llama3: middle band not smoothed", bands_meet),
      numbers_fault("llama3", "llama3: bands exchanged",
                    exchanged("low_freq_factor", "high_freq_factor")),
      numbers_fault("llama3", "llama3: trained length halved", times("original_max_position", 0.5)),
      numbers_fault("yarn", "yarn: scaling ignored", scaling_ignored),
      numbers_fault("yarn", "yarn: rounding of the ramp's ends flipped", truncation_flipped),
      numbers_fault("yarn", "yarn: fast and slow exchanged", exchanged("beta_fast", "beta_slow")),
      numbers_fault("yarn", "yarn: attention factor missing", assigned("attention_factor", 1)),
      numbers_fault("yarn", "yarn: mscale ignored",
                    [](blocks::Params& p) {
                      if (!p.has("mscale")) return false;
                      p.set("mscale", 0.0);
                      return true;
                    }),
      numbers_fault("longrope", "longrope: short and long exchanged", long_and_short_exchanged),
      numbers_fault("longrope", "longrope: long from the trained length on",
                    [](blocks::Params& p) {
                      p.set("length", p.number("length") + 1);
                      return true;
                    }),
      numbers_fault("longrope", "longrope: attention factor missing",
                    assigned("attention_factor", 1)),
  };
}

namespace {

struct Table {
  Tensor cos, sin, positions, inv_freq;
  double scaling;
};

Fault table_fault(const char* name, const std::function<void(Call&, Table&)>& run,
                  bool narrow_only = false) {
  return {
      "rotary_table",
      name,
      {.rotary_table =
           [run](Call& c, auto& cos, auto& sin, auto& positions, auto& inv_freq, double scaling) {
             Table t{cos, sin, positions, inv_freq, scaling};
             run(c, t);
           }},
      narrow_only};
}

void right(Call& c, const Table& t) {
  c.ops.rotary_table(t.cos, t.sin, t.positions, t.inv_freq, t.scaling);
}

// The right table at other positions; f gets a position, its index in its row and the row's first
// one.
Fault positions_fault(const char* name, const std::function<double(double, size_t, double)>& f) {
  return table_fault(name, [f](Call& c, Table& t) {
    const auto tokens = static_cast<size_t>(t.positions.dim(1));
    t.positions = changed(c.ops, t.positions, [&](Values& v) {
      for (size_t i = v.size(); i-- > 0;) v[i] = f(v[i], i % tokens, v[i / tokens * tokens]);
    });
    right(c, t);
  });
}

// cos and sin from an angle of (position, frequency).
void with_angles(const Table& t, const std::function<double(double, double)>& angle,
                 bool truncate) {
  const Values frequencies = values_of(t.inv_freq);
  Values cosines, sines;
  for (double position : values_of(t.positions)) {
    for (size_t i = 0; i < 2 * frequencies.size(); ++i) {
      const double a = angle(position, frequencies[i % frequencies.size()]);
      cosines.push_back(std::cos(a) * t.scaling);
      sines.push_back(std::sin(a) * t.scaling);
    }
  }
  (truncate ? put_truncated : put)(t.cos, cosines, "value");
  (truncate ? put_truncated : put)(t.sin, sines, "value");
}

void pairs_adjacent(Call& c, Table& t) {
  right(c, t);
  for (const Tensor& table : {t.cos, t.sin}) {
    const auto r = static_cast<size_t>(table.dim(-1));
    edit(table, [&](Values& v) {
      const Values in = v;
      for (size_t i = 0; i < v.size(); ++i) v[i] = in[i / r * r + i % r / 2];
    });
  }
}

void first_row_for_all(Call& c, Table& t) {
  const auto tokens = static_cast<size_t>(t.positions.dim(1));
  t.positions = changed(c.ops, t.positions, [&](Values& v) {
    // The last row, as the first may be the padded one or not.
    for (size_t i = 0; i < v.size(); ++i) v[i] = v[v.size() - tokens + i % tokens];
  });
  right(c, t);
}

}  // namespace

std::vector<Fault> rotary_table_faults() {
  return {
      positions_fault("position + 1", [](double p, size_t, double) { return p + 1; }),
      positions_fault("positions start at 0 in every call",
                      [](double p, size_t, double first) { return p - first; }),
      positions_fault(
          "positions count the padding",
          [](double, size_t t, double first) { return first + static_cast<double>(t); }),
      positions_fault("positions halved",
                      [](double p, size_t, double) { return std::floor(p / 2); }),
      table_fault("batch rows share one row's positions", first_row_for_all),
      table_fault("sine's sign",
                  [](Call& c, Table& t) {
                    right(c, t);
                    put(t.sin, values_of(mapped(c.ops, t.sin, [](double x) { return -x; })));
                  }),
      table_fault("cosine and sine exchanged",
                  [](Call& c, Table& t) { std::swap(t.cos, t.sin), right(c, t); }),
      table_fault("attention scaling missing",
                  [](Call& c, Table& t) { t.scaling = 1, right(c, t); }),
      table_fault("attention scaling twice",
                  [](Call& c, Table& t) { t.scaling *= t.scaling, right(c, t); }),
      table_fault("attention scaling of the cosine only",
                  [](Call& c, Table& t) {
                    right(c, t);
                    put(t.sin,
                        values_of(mapped(c.ops, t.sin, [&](double x) { return x / t.scaling; })));
                  }),
      table_fault("angles in bf16",
                  [](Call&, Table& t) {
                    with_angles(
                        t, [](double p, double f) { return round_to(DType::bf16, p * f); }, false);
                  }),
      table_fault(
          "frequencies rounded to the model's dtype",
          [](Call& c, Table& t) {
            const DType dtype = t.cos.dtype();
            t.inv_freq = mapped(c.ops, t.inv_freq, [&](double f) { return round_to(dtype, f); });
            right(c, t);
          },
          true),
      table_fault("theta 1 % larger",
                  [](Call& c, Table& t) {
                    t.inv_freq = changed(c.ops, t.inv_freq, [](Values& v) {
                      const auto n = static_cast<double>(v.size());
                      for (size_t i = 0; i < v.size(); ++i) {
                        v[i] *= std::pow(1.01, -static_cast<double>(i) / n);
                      }
                    });
                    right(c, t);
                  }),
      table_fault("pairs side by side instead of halves", pairs_adjacent),
      table_fault(
          "truncating store",
          [](Call&, Table& t) {
            with_angles(
                t, [](double p, double f) { return round_to(DType::f32, p * f); }, true);
          },
          true),
  };
}

}  // namespace plumb::harness::testing
