// Reductions of rows of float32 (kernels/ops/reductions.h), for simd_kernels.cpp only.
#pragma once

#include "kernels/cpu/partial_sums.h"
#include "kernels/cpu/vec_arithmetic.h"

namespace plumb::cpu {
namespace {

constexpr I first_lanes() {
  I lanes = {};
  for (int i = 0; i < kWidth; ++i) lanes[i] = i;
  return lanes;
}

template <bool IsValue>
struct BesideVector {
  using Type = I;
};
template <>
struct BesideVector<true> {
  using Type = F;
};

// kWidth states of a reduction, of which the last may be missing.
template <class R>
struct StateRow {
  static constexpr bool kBeside = R::kBeside != reductions::Beside::nothing;
  using B = typename BesideVector<R::kBeside == reductions::Beside::value>::Type;
  using State = reductions::State<F, B>;

  static F some(const float* p, int64_t count) {
    return count == kWidth ? load(p) : load(p, count, 0.0f);
  }
  static void put(float* p, F v, int64_t count) {
    if (count == kWidth) store(p, v);
    else store(p, v, count);
  }
  static State get(const float* values, const float* beside, int64_t count) {
    return {some(values, count), kBeside ? (B)some(beside, count) : B{}};
  }
  static void set(float* values, float* beside, const State& s, int64_t count) {
    put(values, s.value, count);
    if (kBeside) put(beside, (F)s.beside, count);
  }
};

template <class R>
void reduce_row(float* values, float* beside, const float* x, int64_t n, int32_t index) {
  using Row = StateRow<R>;
  const Lanes<kF32> m{};
  const I lanes = first_lanes();
  typename Row::State s[kParts];
  for (int j = 0; j < kParts; ++j)
    s[j] = Row::get(values + j * kWidth, beside + j * kWidth, kWidth);
  const auto step = [&](int j, F v, int64_t at) {
    return R::step(m, s[j], v, lanes + static_cast<int32_t>(index + at));
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma GCC unroll 8
    for (int j = 0; j < kParts; ++j) s[j] = step(j, load(x + i + j * kWidth), i + j * kWidth);
  }
  for (int j = 0; i < n; ++j, i += kWidth) {
    const int64_t count = n - i < kWidth ? n - i : kWidth;
    const auto next = step(j, Row::some(x + i, count), i);
    const I is_in = lanes < static_cast<int32_t>(count);
    s[j] = {is_in ? next.value : s[j].value, is_in ? next.beside : s[j].beside};
  }
  for (int j = 0; j < kParts; ++j) {
    Row::set(values + j * kWidth, beside + j * kWidth, s[j], kWidth);
  }
}

// f(i, count) for each vector of n elements.
template <class Function>
inline void each_vector(int64_t n, Function f) {
  for (int64_t i = 0; i < n; i += kWidth) f(i, n - i < kWidth ? n - i : kWidth);
}
template <class R>
void reduce_columns(float* values, float* beside, const float* x, int64_t n, int32_t index) {
  using Row = StateRow<R>;
  each_vector(n, [=](int64_t i, int64_t count) {
    const auto s = Row::get(values + i, beside + i, count);
    Row::set(values + i, beside + i,
             R::step(Lanes<kF32>{}, s, Row::some(x + i, count), I{} + index), count);
  });
}
template <class R>
void combine_states(float* values, float* beside, const float* others, const float* beside_others,
                    int64_t n) {
  using Row = StateRow<R>;
  each_vector(n, [=](int64_t i, int64_t count) {
    const auto a = Row::get(values + i, beside + i, count);
    const auto b = Row::get(others + i, beside_others + i, count);
    Row::set(values + i, beside + i, R::combine(Lanes<kF32>{}, a, b), count);
  });
}
template <class R>
void finish_states(float* values, const float* beside, float of, int64_t n) {
  using Row = StateRow<R>;
  if constexpr (R::kBeside != reductions::Beside::index) {
    each_vector(n, [=](int64_t i, int64_t count) {
      const auto s = Row::get(values + i, beside + i, count);
      Row::put(values + i, R::finish(Lanes<kF32>{}, s, splat(of)), count);
    });
  }
}

struct Scalar {  // what reductions start from
  constexpr float constant(int c) const { return static_cast<float>(c); }
  constexpr float infinity() const { return __builtin_inff(); }
};
template <class R>
constexpr ReductionRow reduction_row() {
  return {R::template start<float>(Scalar()), reduce_row<R>, reduce_columns<R>, combine_states<R>,
          finish_states<R>};
}

}  // namespace
}  // namespace plumb::cpu
