#include "harness/run/packed.h"

#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/error.h"

namespace plumb {
namespace {

// The members of each struct, once for both directions. A member that is missing here does not
// compile: a structured binding names all or none.
template <class Each>
void members(Term& x, Each each) {
  auto& [name, value] = x;
  each(name, value);
}
template <class Each>
void members(Gate& x, Each each) {
  auto& [name, statistic, limit, derivation, passed, where] = x;
  each(name, statistic, limit, derivation, passed, where);
}
template <class Each>
void members(ClassCheck& x, Each each) {
  auto& [y, reference, rounded, wrong, first_wrong, padded_wrong, first_padded_wrong, range_hazards,
         unknown_oracle, outcomes] = x;
  each(y, reference, rounded, wrong, first_wrong, padded_wrong, first_padded_wrong, range_hazards,
       unknown_oracle, outcomes);
}
template <class Each>
void members(GroupStatistic& x, Each each) {
  auto& [family, value, normalised, worst, worst_value, worst_kappa] = x;
  each(family, value, normalised, worst, worst_value, worst_kappa);
}
template <class Each>
void members(Statistics& x, Each each) {
  auto& [tensor, families, element, element_at, gain] = x;
  each(tensor, families, element, element_at, gain);
}
template <class Each>
void members(NamedValue& x, Each each) {
  auto& [name, value, at] = x;
  each(name, value, at);
}
template <class Each>
void members(WorstGroup& x, Each each) {
  auto& [family, name, value] = x;
  each(family, name, value);
}
template <class Each>
void members(Details& x, Each each) {
  auto& [values, octaves, ulps, worst_groups] = x;
  each(values, octaves, ulps, worst_groups);
}
template <class Each>
void members(ErrorMap& x, Each each) {
  auto& [name, energy] = x;
  each(name, energy);
}
template <class Each>
void members(Localisation& x, Each each) {
  auto& [region, share, worst, maps] = x;
  each(region, share, worst, maps);
}
template <class Each>
void members(OutputVerdict& x, Each each) {
  auto& [name, status, reason, gates, classes, statistics, reference, recorded_error,
         golden_suspect, ill_conditioned, rounding, floors, details, conformance, where] = x;
  each(name, status, reason, gates, classes, statistics, reference, recorded_error, golden_suspect,
       ill_conditioned, rounding, floors, details, conformance, where);
}
template <class Each>
void members(ChainRow& x, Each each) {
  auto& [checkpoint, block, output, step, before, amplification, isolated, isolated_limit,
         isolated_reference, isolated_failed, chained, chained_limit, reference, floor, forecast,
         simulated, vectors, width, shadow, shadow_limit, changed, saturated, diagnosis] = x;
  each(checkpoint, block, output, step, before, amplification, isolated, isolated_limit,
       isolated_reference, isolated_failed, chained, chained_limit, reference, floor, forecast,
       simulated, vectors, width, shadow, shadow_limit, changed, saturated, diagnosis);
}
template <class Each>
void members(ChainReport& x, Each each) {
  auto& [rows, first_divergence, onset, culprit, culprit_block] = x;
  each(rows, first_divergence, onset, culprit, culprit_block);
}
template <class Each>
void members(Margin& x, Each each) {
  auto& [bug, margin] = x;
  each(bug, margin);
}
template <class Each>
void members(KnownBugFound& x, Each each) {
  auto& [bug, differ, ratio, rounds] = x;
  each(bug, differ, ratio, rounds);
}
template <class Each>
void members(CheckpointResult& x, Each each) {
  auto& [status, reason, block, checkpoint, recording, fixture, device, dtype, contract, looser,
         impl, fused, step, outputs, features, blind_to, details, diagnosis, known_bug, not_judged,
         again, output_sha256, golden_sha256, determinism, runs, margins, seconds, chain] = x;
  each(status, reason, block, checkpoint, recording, fixture, device, dtype, contract, looser, impl,
       fused, step, outputs, features, blind_to, details, diagnosis, known_bug, not_judged, again,
       output_sha256, golden_sha256, determinism, runs, margins, seconds, chain);
}
template <class Each>
void members(Replayed& x, Each each) {
  auto& [result, outputs] = x;
  each(result, outputs);
}

// Numbers, enumerations, and structs of nothing else: their bytes are their value.
template <class T>
concept Plain =
    std::is_trivially_copyable_v<T> && !std::is_same_v<T, std::string_view> && !requires(T & x) {
  members(x, [](auto&...) {});
};

// Names of gates and families are views of literals; a received one is kept as long as the program.
std::string_view kept(std::string_view name) {
  static std::set<std::string, std::less<>> names;
  const auto found = names.find(name);
  return found != names.end() ? *found : *names.emplace(name).first;
}

class Packer {
 public:
  template <class... Parts>
  void operator()(Parts&... parts) {
    (put(parts), ...);
  }
  std::string take() { return std::move(bytes_); }

 private:
  void put_bytes(const void* from, size_t size) {
    bytes_.append(static_cast<const char*>(from), size);
  }
  template <Plain T>
  void put(T& x) {
    put_bytes(&x, sizeof x);
  }
  void put(std::string_view s) {
    const uint64_t size = s.size();
    put(size);
    put_bytes(s.data(), s.size());
  }
  template <class T>
  void put(std::vector<T>& list) {
    const uint64_t size = list.size();
    put(size);
    if constexpr (Plain<T>) put_bytes(list.data(), list.size() * sizeof(T));
    else
      for (T& x : list) put(x);
  }
  template <class T>
  void put(std::optional<T>& x) {
    const bool has = x.has_value();
    put(has);
    if (has) put(*x);
  }
  void put(std::map<std::string, Tensor>& tensors) {
    const uint64_t size = tensors.size();
    put(size);
    for (auto& [name, t] : tensors) {
      DType dtype = t.dtype();
      std::vector<int64_t> extents;
      for (int i = 0; i < t.rank(); ++i) extents.push_back(t.dim(i));
      (*this)(name, dtype, extents);
      put_bytes(t.raw(), static_cast<size_t>(t.bytes()));
    }
  }
  template <class T>
  requires requires(T& x) {
    members(x, [](auto&...) {});
  }
  void put(T& x) {
    members(x, [this](auto&... parts) { (*this)(parts...); });
  }

  std::string bytes_;
};

class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : left_(bytes) {}

  template <class... Parts>
  void operator()(Parts&... parts) {
    (get(parts), ...);
  }
  void finish() const { expect(left_.empty()); }

 private:
  static void expect(bool good) { require<Error>(good, "worker", "a result arrived damaged"); }

  void get_bytes(void* to, size_t size) {
    expect(size <= left_.size());
    if (size > 0) std::memcpy(to, left_.data(), size);
    left_.remove_prefix(size);
  }
  // A number of things of at least `each` bytes, which therefore has to fit into what is left.
  size_t get_size(size_t each) {
    uint64_t size = 0;
    get(size);
    expect(size <= left_.size() / each);
    return static_cast<size_t>(size);
  }
  template <Plain T>
  void get(T& x) {
    get_bytes(&x, sizeof x);
  }
  void get(std::string& s) {
    s.resize(get_size(1));
    get_bytes(s.data(), s.size());
  }
  void get(std::string_view& s) {
    const size_t size = get_size(1);
    s = kept(left_.substr(0, size));
    left_.remove_prefix(size);
  }
  template <class T>
  void get(std::vector<T>& list) {
    list.resize(get_size(Plain<T> ? sizeof(T) : 1));
    if constexpr (Plain<T>) get_bytes(list.data(), list.size() * sizeof(T));
    else
      for (T& x : list) get(x);
  }
  template <class T>
  void get(std::optional<T>& x) {
    uint8_t has = 0;
    get(has);
    if (has) get(x.emplace());
  }
  void get(std::map<std::string, Tensor>& tensors) {
    for (size_t n = get_size(1); n > 0; --n) {
      std::string name;
      DType dtype{};
      std::vector<int64_t> extents;
      (*this)(name, dtype, extents);
      const Tensor t = host_tensor(dtype, Shape(extents));
      get_bytes(t.raw(), static_cast<size_t>(t.bytes()));
      tensors[name] = t;
    }
  }
  template <class T>
  requires requires(T& x) {
    members(x, [](auto&...) {});
  }
  void get(T& x) {
    members(x, [this](auto&... parts) { (*this)(parts...); });
  }

  std::string_view left_;
};

}  // namespace

std::string packed(Replayed replayed) {
  Packer out;
  out(replayed);
  return out.take();
}

Replayed unpacked(std::string_view bytes) {
  Replayed out;
  Unpacker in(bytes);
  in(out);
  in.finish();
  return out;
}

}  // namespace plumb
