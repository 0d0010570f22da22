// How a run of the oracle computes where that is not what ops.h says: other rounding points, flash
// attention's order, or float32 arithmetic simulated by noise. The family of correct kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/dtype.h"

namespace plumb {

// A place where a value may be rounded to 16-bit storage. Eager code rounds there, or some kernels
// do and eager code does not.
struct RoundingPoint {
  std::string name;  // the op, or op.value: "rms_norm.normalised"
  bool eager = true;
};

// cos and sin as they were before they were rounded to 16-bit storage, element by element.
struct RotaryTable {
  std::vector<double> cos, sin;
};

// Set for the runs of one thread by ArithmeticScope, which also fills in what the runs had.
struct Arithmetic {
  // By rounding point, in the order of the run: do not as eager code does, but keep the value
  // unrounded (or round it, where eager code does not). Missing ones: as eager code does.
  std::vector<bool> changed = {};
  // sdpa in one go rounds its weights as flash attention does: against the running maximum of tiles
  // of so many keys, undivided, before they multiply the values.
  std::optional<int64_t> key_tile = {};
  // Every sum is off by 0.5 u32 sum |a b| and by 0.25 sqrt(n) u32 of itself (sums of one sign
  // drift), every function by 2 u32 of its result, normally distributed: what float32 arithmetic in
  // another order gives. Not on float64 tensors.
  std::optional<uint64_t> noise = {};
  // With noise: storage rounds to one of the two nearest values, the nearer being the likelier, so
  // that every run draws new roundings.
  bool random_rounding = false;
  // What has float64 storage is computed in the host's long double (64 significant bits on x86, 113
  // on Arm) and rounded once: the oracle of devices that compute in float64 themselves. Of
  // elementwise ops, reductions, sums by ids and products of matrices.
  bool extended = false;
  // Rotary takes a value of this table wherever it rounds to the one that it is given: a kernel
  // that makes its own table keeps it in float32.
  std::shared_ptr<const RotaryTable> table = {};

  std::vector<RoundingPoint> points = {};  // of the run
  double max_abs_score = 0;  // largest |score| of an allowed key that sdpa in one go had
};

class ArithmeticScope {
 public:
  explicit ArithmeticScope(Arithmetic& arithmetic);
  ~ArithmeticScope();
  ArithmeticScope(const ArithmeticScope&) = delete;
  ArithmeticScope& operator=(const ArithmeticScope&) = delete;

  // That of this thread's innermost scope; null where there is none.
  static ArithmeticScope* current();
  Arithmetic& arithmetic() { return arithmetic_; }
  const Arithmetic& arithmetic() const { return arithmetic_; }
  double normal() { return normal_(engine_); }
  double uniform() { return uniform_(engine_); }  // in [-1/2, 1/2)

 private:
  Arithmetic& arithmetic_;
  ArithmeticScope* const outer_;
  std::mt19937_64 engine_;
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_{-0.5, 0.5};
};

// Whether the next rounding point of this run rounds to `storage`.
bool rounds_here(DType storage, std::string_view name, bool eager = true);

// x rounded to storage as this run rounds: to the nearest value, or at random.
double round_in_run(DType storage, double x);

// Rounds to storage, or not, as the next rounding point of the run says.
class Rounding {
 public:
  Rounding(DType storage, std::string_view name, bool eager = true)
      : storage_(storage), rounds_(rounds_here(storage, name, eager)) {}
  double operator()(double x) const { return rounds_ ? round_in_run(storage_, x) : x; }
  bool rounds() const { return rounds_; }

 private:
  DType storage_;
  bool rounds_;
};

// An allowed key's score, for max_abs_score.
void note_score(double score);

// The errors of simulated float32 arithmetic; none outside of a scope with noise.
class Noise {
 public:
  explicit Noise(DType storage);
  bool on() const { return scope_ != nullptr; }
  // A sum of so many terms, whose magnitudes add up to `magnitudes`.
  double sum(double exact, double magnitudes, size_t terms) const;
  // a - b, rounded: what is far from zero loses what exp() of it shows.
  double difference(double a, double b) const;
  // A function's value, `scale` being what its error is measured in (GELU: its argument).
  double function(double exact, double scale) const;
  double function(double exact) const { return function(exact, exact); }

 private:
  ArithmeticScope* scope_;
};

}  // namespace plumb
