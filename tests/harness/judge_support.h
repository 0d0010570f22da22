// Small cases for the tests of the judge: tensors from numbers, reproducible random values.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "harness/judge/output_case.h"
#include "harness/judge/verdict.h"
#include "kernels/core/dtype.h"
#include "kernels/core/tensor.h"
#include "tests/catch.h"
#include "tests/harness/no_number.h"

namespace plumb::harness::testing {

inline Tensor tensor_of(DType dtype, const Shape& shape, const std::vector<double>& values) {
  Tensor out = host_tensor(dtype, shape);
  char* at = out.data<char>();
  for (size_t i = 0; i < values.size(); ++i) {
    store(dtype, at + static_cast<int64_t>(i) * size_of(dtype), values[i]);
  }
  return out;
}

inline std::vector<double> values_of(const Tensor& t) {
  std::vector<double> out(static_cast<size_t>(t.numel()));
  const char* at = t.data<char>();
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = load(t.dtype(), at + static_cast<int64_t>(i) * size_of(t.dtype()));
  }
  return out;
}

// splitmix64; the same numbers everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // [0, 1)
  double normal() {
    return std::sqrt(-2 * std::log(1 - uniform())) * std::cos(6.283185307179586 * uniform());
  }
  std::vector<double> normals(int64_t n, double scale = 1) {
    std::vector<double> out(static_cast<size_t>(n));
    for (double& x : out) x = scale * normal();
    return out;
  }

 private:
  uint64_t state_;
};

inline std::vector<double> rounded(DType dtype, std::vector<double> values) {
  for (double& x : values) x = round_to(dtype, x);
  return values;
}

// A case whose recording holds r and delta = o - r, and whose output is y.
struct Made {
  Shape shape;
  std::vector<std::string> axes;
  DType dtype = DType::f32;
};

inline OutputCase case_of(const Made& made, const std::vector<double>& y,
                          const std::vector<double>& r, const std::vector<double>& o) {
  OutputCase c;
  c.evidence.name = "out";
  c.evidence.axes = made.axes;
  c.evidence.y = tensor_of(made.dtype, made.shape, y);
  c.evidence.reference = tensor_of(made.dtype, made.shape, r);
  std::vector<double> delta = o;
  for (size_t i = 0; i < delta.size(); ++i) delta[i] -= round_to(made.dtype, r[i]);
  c.evidence.delta = tensor_of(DType::f32, made.shape, delta);
  c.rule.contract.storage = c.rule.contract.multiply = made.dtype;
  c.rule.stages = {{64, {}}};
  return c;
}

// 16 tokens x 32 channels unless said otherwise.
inline Made made(DType dtype, const Shape& shape = {16, 32}) {
  return {shape, {"token", "channel"}, dtype};
}

// o is normal, r = round(o); `change` edits y, which starts as r.
template <class Change>
OutputCase changed(DType dtype, Change change, uint64_t seed = 11) {
  Random random(seed);
  const std::vector<double> o = random.normals(512), r = rounded(dtype, o);
  std::vector<double> y = r;
  change(y);
  return case_of(made(dtype), y, r, o);
}

inline const Gate& gate(const std::vector<Gate>& gates, std::string_view name) {
  for (const Gate& g : gates) {
    if (g.name == name) return g;
  }
  FAIL("no gate " << name);
  return gates.front();
}
inline const Gate& gate(const OutputVerdict& v, std::string_view name) {
  return gate(v.gates, name);
}

// False too when there is no such gate.
inline bool failed(const OutputVerdict& v, std::string_view name) {
  for (const Gate& g : v.gates) {
    if (g.name == name) return !g.passed;
  }
  return false;
}

}  // namespace plumb::harness::testing
