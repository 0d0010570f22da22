#include "harness/replay/result_json.h"

#include <concepts>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "harness/io/json_line.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

using Json = nlohmann::ordered_json;

template <class T, class U>
concept Is = std::same_as<std::remove_const_t<T>, U>;

// The members of each struct with their keys, once for both directions; `inner` ones are not for
// results files. A member that is missing here does not compile: a structured binding names all.
void members(Is<Gate> auto& x, auto each) {
  auto& [name, statistic, limit, derivation, passed, where] = x;
  each("name", name, "statistic", statistic, "limit", limit, "derivation", derivation, "passed",
       passed, "where", where);
}
void members(Is<ClassCounts> auto& x, auto each) {
  auto& [finite, plus_infinity, minus_infinity, nan] = x;
  each("finite", finite, "plus_infinity", plus_infinity, "minus_infinity", minus_infinity, "nan",
       nan);
}
// Without the outcomes, one per element, which only the judge needs.
void members(Is<ClassCheck> auto& x, auto each) {
  auto& [y, reference, rounded, wrong, first_wrong, padded_wrong, first_padded_wrong, range_hazards,
         unknown_oracle, outcomes] = x;
  each("y", y, "reference", reference, "rounded", rounded, "wrong", wrong, "first_wrong",
       first_wrong, "padded_wrong", padded_wrong, "first_padded_wrong", first_padded_wrong,
       "range_hazards", range_hazards, "unknown_oracle", unknown_oracle);
}
void members(Is<GroupStatistic> auto& x, auto each) {
  auto& [family, value, normalised, worst, worst_value, worst_kappa] = x;
  each("family", family, "value", value, "normalised", normalised, "worst", worst, "worst_value",
       worst_value, "worst_kappa", worst_kappa);
}
void members(Is<Statistics> auto& x, auto each) {
  auto& [tensor, families, element, element_at, gain] = x;
  each("E_T", tensor, "M_E", element, "M_E_at", element_at, "gain", gain, "families", families);
}
void members(Is<Floors> auto& x, auto each) {
  auto& [accumulation, norm, element, roundings] = x;
  each("accumulation", accumulation, "norm", norm, "element", element);
  each.inner("roundings", roundings);
}
void members(Is<WorstGroup> auto& x, auto each) {
  auto& [family, name, value] = x;
  each("family", family, "group", name, "value", value);
}
void members(Is<Details> auto& x, auto each) {
  auto& [values, octaves, ulps, worst_groups] = x;
  each("values", values, "octaves", octaves, "ulps", ulps, "worst_groups", worst_groups);
}
void members(Is<Conformance> auto& x, auto each) {
  auto& [n, differ, set_aside, first, q, limit, passed] = x;
  each("n", n, "differ", differ, "set_aside", set_aside, "first", first, "q", q, "limit", limit,
       "passed", passed);
}
void members(Is<ErrorMap> auto& x, auto each) {
  auto& [name, energy] = x;
  each("name", name, "energy", energy);
}
void members(Is<ErrorPicture> auto& x, auto each) {
  auto& [row_axes, column_axes, rows, columns, cells] = x;
  each("row_axes", row_axes, "column_axes", column_axes, "rows", rows, "columns", columns, "cells",
       cells);
}
void members(Is<Localisation> auto& x, auto each) {
  auto& [region, share, worst, maps, picture] = x;
  each("region", region, "share", share, "worst", worst, "maps", maps, "picture", picture);
}
void members(Is<OutputVerdict> auto& x, auto each) {
  auto& [name, status, reason, gates, classes, statistics, reference, recorded_error,
         golden_suspect, ill_conditioned, unjudged, rounding, floors, details, conformance, where,
         mismatch] = x;  // unjudged: the reason says it
  each("name", name, "status", status, "reason", reason, "gates", gates, "classes", classes,
       "statistics", statistics, "reference_statistics", reference, "recorded_error",
       recorded_error, "golden_suspect", golden_suspect, "ill_conditioned", ill_conditioned,
       "rounding", rounding, "floors", floors, "informative", details, "conformance", conformance,
       "where", where, "mismatch", mismatch);
}
void members(Is<ChainRow> auto& x, auto each) {
  auto& [checkpoint, block, output, step, before, amplification, isolated, isolated_limit,
         isolated_reference, isolated_failed, chained, chained_limit, reference, introduces, floor,
         forecast, simulated, vectors, width, shadow, shadow_limit, changed, saturated, diagnosis] =
      x;
  each("checkpoint", checkpoint, "block", block, "output", output, "step", step, "isolated",
       isolated, "isolated_limit", isolated_limit, "isolated_failed", isolated_failed, "chained",
       chained, "chained_limit", chained_limit, "reference", reference, "floor", floor, "forecast",
       forecast, "simulated", simulated, "shadow", shadow, "shadow_limit", shadow_limit,
       "changed_bytes", changed, "saturated", saturated, "diagnosis", diagnosis);
  each.inner("before", before, "amplification", amplification, "isolated_reference",
             isolated_reference, "introduces", introduces, "vectors", vectors, "width", width);
}
void members(Is<ChainReport> auto& x, auto each) {
  auto& [rows, first_divergence, onset, culprit, culprit_block] = x;
  each("first_divergence", first_divergence, "onset", onset, "culprit", culprit, "culprit_block",
       culprit_block, "rows", rows);
}
void members(Is<KnownBugFound> auto& x, auto each) {
  auto& [bug, differ, ratio, rounds] = x;
  each("bug", bug, "differ", differ, "ratio", ratio, "rounds", rounds);
}
void members(Is<CheckpointResult> auto& x, auto each) {
  auto& [status, reason, block, checkpoint, recording, fixture, device, dtype, contract, looser,
         refereed, impl, fused, step, outputs, features, blind_to, details, diagnosis, known_bug,
         not_judged, again, output_sha256, golden_sha256, determinism, runs, margins, seconds,
         chain] = x;
  each("status", status, "block", block, "checkpoint", checkpoint, "recording", recording,
       "fixture", fixture, "device", device, "dtype", dtype, "contract", contract,
       "looser_contracts", looser, "impl", impl, "fused", fused, "step", step, "reason", reason,
       "details", details, "diagnosis", diagnosis, "known_bug", known_bug, "not_judged", not_judged,
       "outputs", outputs, "features", features, "blind_to", blind_to, "output_sha256",
       output_sha256, "golden_sha256", golden_sha256, "determinism", determinism, "runs", runs,
       "margins", margins, "seconds", seconds, "chain", chain, "again", again);
  each.inner("refereed", refereed);
}
void members(Is<Replayed> auto& x, auto each) {
  auto& [result, outputs] = x;
  each("result", result, "outputs", outputs);
}

// Of a list that is an object in JSON: the key of an item, and what is under it.
void members(Is<NamedValue> auto& x, auto each) {
  auto& [name, value, at] = x;
  each("value", value, "at", at);
}
auto& key_of(Is<NamedValue> auto& x) { return x.name; }
auto& value_of(Is<NamedValue> auto& x) { return x; }
auto& key_of(Is<Term> auto& x) { return x.name; }
auto& value_of(Is<Term> auto& x) { return x.value; }
auto& key_of(Is<Margin> auto& x) { return x.bug; }
auto& value_of(Is<Margin> auto& x) { return x.margin; }

template <class T>
concept Keyed = requires(T& x) {
  key_of(x);
};
template <class T>
concept Struct = requires(T& x) {
  members(x, 0);
};

// Makes objects for results files.
class JsonWriter {
 public:
  explicit JsonWriter(Json& out) : out_(out) {}

  void operator()() const {}
  template <class T, class... Rest>
  void operator()(const char* key, const T& value, const Rest&... rest) const {
    out_[key] = json(value);
    (*this)(rest...);
  }
  void inner(const auto&...) const {}

 private:
  template <class T>
  static Json json(const T& x) {
    if constexpr (Struct<const T>) {
      Json out = Json::object();
      members(x, JsonWriter(out));
      return out;
    } else if constexpr (std::is_enum_v<T>) {
      return name_of(x);
    } else {
      return x;
    }
  }
  template <class T>
  static Json json(const std::optional<T>& x) {
    return x ? json(*x) : Json();
  }
  template <class T>
  static Json json(const std::vector<T>& list) {
    Json out = Keyed<T> ? Json::object() : Json::array();
    for (const T& x : list) {
      if constexpr (Keyed<T>) out[std::string(key_of(x))] = json(value_of(x));
      else out.push_back(json(x));
    }
    return out;
  }

  Json& out_;
};

// Makes bytes: values as they are in memory, sizes before what has one.
class Packer {
 public:
  explicit Packer(std::string& out) : out_(out) {}

  void operator()() const {}
  template <class T, class... Rest>
  void operator()(const char*, const T& value, const Rest&... rest) const {
    put(value);
    (*this)(rest...);
  }
  void inner(const auto&... parts) const { (*this)(parts...); }

 private:
  void put_bytes(const void* from, size_t size) const {
    out_.append(static_cast<const char*>(from), size);
  }
  template <class T>
  void put(const T& x) const {
    if constexpr (Struct<const T>) {
      members(x, *this);
    } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      put(uint64_t{x.size()});
      put_bytes(x.data(), x.size());
    } else {
      static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
      put_bytes(&x, sizeof x);
    }
  }
  template <class T>
  void put(const std::optional<T>& x) const {
    put(x.has_value());
    if (x) put(*x);
  }
  template <class T>
  void put(const std::vector<T>& list) const {
    put(uint64_t{list.size()});
    for (const T& x : list) {
      if constexpr (Keyed<T>) put(key_of(x));
      if constexpr (Keyed<T>) put(value_of(x));
      else put(x);
    }
  }
  void put(const std::map<std::string, Tensor>& tensors) const {
    put(uint64_t{tensors.size()});
    for (const auto& [name, t] : tensors) {
      std::vector<int64_t> extents;
      for (int i = 0; i < t.rank(); ++i) extents.push_back(t.dim(i));
      (*this)("", name, "", name_of(t.dtype()), "", extents);
      put_bytes(t.raw(), static_cast<size_t>(t.bytes()));
    }
  }

  std::string& out_;
};

void expect(bool good) { require<Error>(good, "worker", "a result arrived damaged"); }

// The last one of each enumeration.
constexpr Status last(Status) { return Status::internal_error; }
constexpr Determinism last(Determinism) { return Determinism::d1; }
constexpr Diagnosis last(Diagnosis) { return Diagnosis::saturated; }

class Unpacker {
 public:
  explicit Unpacker(std::string_view& left) : left_(left) {}

  void operator()() const {}
  template <class T, class... Rest>
  void operator()(const char*, T& value, Rest&... rest) const {
    get(value);
    (*this)(rest...);
  }
  void inner(auto&... parts) const { (*this)(parts...); }

 private:
  std::string_view take(size_t size) const {
    expect(size <= left_.size());
    const std::string_view taken = left_.substr(0, size);
    left_.remove_prefix(size);
    return taken;
  }
  std::string_view take_sized() const {
    uint64_t size = 0;
    get(size);
    return take(size);
  }
  template <class T>
  void get(T& x) const {
    if constexpr (Struct<T>) {
      members(x, *this);
    } else if constexpr (std::is_same_v<T, bool>) {
      const char byte = take(1).front();
      expect(byte == 0 || byte == 1);
      x = byte == 1;
    } else {
      std::memcpy(&x, take(sizeof x).data(), sizeof x);
      if constexpr (std::is_enum_v<T>) expect(x <= last(x));
    }
  }
  void get(std::string& s) const { s = take_sized(); }
  // Names of gates and families are views of literals; a received one is kept as long as the
  // program.
  void get(std::string_view& s) const {
    static std::set<std::string, std::less<>> names;
    const std::string_view name = take_sized();
    const auto found = names.find(name);
    s = found != names.end() ? *found : *names.emplace(name).first;
  }
  template <class T>
  void get(std::optional<T>& x) const {
    bool has = false;
    get(has);
    if (has) get(x.emplace());
  }
  template <class T>
  void get(std::vector<T>& list) const {
    uint64_t size = 0;
    for (get(size); size > 0; --size) {
      T& x = list.emplace_back();
      if constexpr (Keyed<T>) get(key_of(x));
      if constexpr (Keyed<T>) get(value_of(x));
      else get(x);
    }
  }
  void get(std::map<std::string, Tensor>& tensors) const {
    uint64_t size = 0;
    for (get(size); size > 0; --size) {
      std::string name, type;
      std::vector<int64_t> extents;
      (*this)("", name, "", type, "", extents);
      const auto dtype = dtype_from_name(type);
      const Shape shape(extents);
      int64_t bytes = 0;
      expect(dtype && !__builtin_mul_overflow(shape.numel(), size_of(*dtype), &bytes));
      const std::string_view taken = take(static_cast<size_t>(bytes));
      const Tensor t = tensors[name] = host_tensor(*dtype, shape);
      if (!taken.empty()) std::memcpy(t.raw(), taken.data(), taken.size());
    }
  }

  std::string_view& left_;
};

Json passing_bugs(const std::optional<std::vector<Margin>>& margins) {
  if (!margins) return nullptr;
  Json out = Json::array();
  for (const Margin& margin : *margins) {
    if (margin.passes()) out.push_back(margin.bug);
  }
  return out;
}

// What only results files say of a chain.
void add_chain_figures(Json& json, const ChainReport& chain) {
  const Json none = "";
  for (const char* id : {"first_divergence", "onset", "culprit", "culprit_block"}) {
    if (json[id] == none) json[id] = nullptr;
  }
  for (size_t i = 0; i < chain.rows.size(); ++i) {
    json["rows"][i]["inherited"] = chain.rows[i].inherited(chain.rows);
    json["rows"][i]["excess"] = chain.rows[i].excess();
  }
}

}  // namespace

std::string checkpoint_json(const CheckpointResult& result) {
  Json out = {{"type", "checkpoint"}};
  members(result, JsonWriter(out));
  out["passing_bugs"] = passing_bugs(result.margins);
  if (result.chain) add_chain_figures(out["chain"], *result.chain);
  return json_line(std::move(out));
}

std::string explained_json(const ExplainedOutput& output) {
  Json out;
  const JsonWriter write(out);
  write("verdict", output.verdict, "element_limit", output.element_limit, "bits", output.bits,
        "known_bug", output.known_bug);
  out["bug_words"] = output.known_bug ? words_of(*output.known_bug) : "";
  return json_line(std::move(out));
}

std::string packed(const Replayed& replayed) {
  std::string out;
  members(replayed, Packer(out));
  return out;
}

Replayed unpacked(std::string_view bytes) {
  Replayed out;
  members(out, Unpacker(bytes));
  expect(bytes.empty());
  return out;
}

}  // namespace plumb::harness
