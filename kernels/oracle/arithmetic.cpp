#include "kernels/oracle/arithmetic.h"

#include <cmath>

namespace plumb {
namespace {

constexpr double kSumNoise = 0.5 * 0x1p-24;
constexpr double kSumDrift = 0.25 * 0x1p-24;
constexpr double kFunctionNoise = 2 * 0x1p-24;

thread_local ArithmeticScope* current_scope = nullptr;

}  // namespace

ArithmeticScope::ArithmeticScope(Arithmetic& arithmetic)
    : arithmetic_(arithmetic), outer_(current_scope), engine_(arithmetic.noise.value_or(0)) {
  arithmetic_.points.clear();
  arithmetic_.max_abs_score = 0;
  current_scope = this;
}

ArithmeticScope::~ArithmeticScope() { current_scope = outer_; }

ArithmeticScope* ArithmeticScope::current() { return current_scope; }

bool rounds_here(DType storage, std::string_view name, bool eager) {
  const bool narrow = size_of(storage) == 2;
  if (!current_scope || !narrow) return eager;
  Arithmetic& arithmetic = current_scope->arithmetic();
  const size_t index = arithmetic.points.size();
  arithmetic.points.push_back({std::string(name), eager});
  return index < arithmetic.changed.size() && arithmetic.changed[index] ? !eager : eager;
}

double round_in_run(DType storage, double x) {
  const bool at_random = current_scope && current_scope->arithmetic().random_rounding;
  if (!at_random || size_of(storage) != 2 || !std::isfinite(x)) return round_to(storage, x);
  const double nearest = round_to(storage, x);
  if (nearest == x) return x;  // below a power of two the values are closer than above it
  return round_to(storage, x + spacing(storage, x) * current_scope->uniform());
}

void note_score(double score) {
  if (!current_scope) return;
  double& largest = current_scope->arithmetic().max_abs_score;
  largest = std::fmax(largest, std::fabs(score));
}

Noise::Noise(DType storage) {
  const bool on = current_scope && current_scope->arithmetic().noise && storage != DType::f64;
  scope_ = on ? current_scope : nullptr;
}

double Noise::sum(double exact, double magnitudes, size_t terms) const {
  if (!scope_) return exact;
  const double drift = kSumDrift * std::sqrt(static_cast<double>(terms)) * exact;
  return exact + std::hypot(kSumNoise * magnitudes, drift) * scope_->normal();
}

double Noise::difference(double a, double b) const {
  const double exact = a - b;
  return std::isfinite(exact) ? sum(exact, std::fabs(exact), 1) : exact;
}

double Noise::function(double exact, double scale) const {
  return scope_ ? exact + kFunctionNoise * scale * scope_->normal() : exact;
}

}  // namespace plumb
