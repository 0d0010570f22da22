// The row functions of one instruction set. This file is compiled several times, with different
// target flags and with PLUMB_SIMD_TABLE naming the table's function (CMakeLists.txt).
//
// It must not use the standard library: an inline function or template of it compiled here would be
// a weak symbol containing, say, AVX-512 code, the linker keeps one copy of a weak symbol for the
// whole program, and that copy could then run on a machine without AVX-512. For the same reason all
// but the table sits in anonymous namespaces.
#include "kernels/cpu/partial_sums.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_math.h"
#include "kernels/cpu/vec_reductions.h"
#ifdef PLUMB_AMX
#include "kernels/cpu/amx_kernels.h"
#endif

namespace plumb::cpu {
namespace {

// Element by element: f(at) computes one vector from its inputs, at(row) reads an input there,
// at.flags(row) one of bool. Two vectors at a time, so that the compiler can fill the latencies of
// one with the other.

template <Stored S>
struct Whole {
  int64_t i;
  F operator()(const void* row) const { return read<S>(row, i); }
  F flags(const void* row) const { return read_bools(row, i, kWidth); }
};
template <Stored S>
struct Tail {
  int64_t i, n;
  F operator()(const void* row) const { return read<S>(row, i, n - i, 0.0f); }
  F flags(const void* row) const { return read_bools(row, i, n - i); }
};

template <Stored S, class Function>
inline void each(void* out, int64_t n, Function f) {
  const auto whole = [f](int64_t i) { return f(Whole<S>{i}); };
  int64_t i = 0;
  for (; i + 2 * kWidth <= n; i += 2 * kWidth) {
    const F first = whole(i), second = whole(i + kWidth);
    write<S>(out, i, first);
    write<S>(out, i + kWidth, second);
  }
  if (i + kWidth <= n) {
    write<S>(out, i, whole(i));
    i += kWidth;
  }
  if (i == n) return;
  write<S>(out, i, f(Tail<S>{i, n}), n - i);
}

// The same of a function that gives 1 or 0, for a row of bool.
template <Stored S, class Function>
inline void each_bool(void* out, int64_t n, Function f) {
  uint8_t* to = static_cast<uint8_t*>(out);
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const B flags = __builtin_convertvector(__builtin_convertvector(f(Whole<S>{i}), I), B);
    __builtin_memcpy(to + i, &flags, sizeof flags);
  }
  if (i == n) return;
  const F last = f(Tail<S>{i, n});
  for (int64_t k = 0; i + k < n; ++k) to[i + k] = static_cast<uint8_t>(last[k]);
}

template <Stored S>
void widen_row(float* out, const void* in, int64_t n) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(out + i, read<S>(in, i));
  if (i < n) store(out + i, read<S>(in, i, n - i, 0.0f), n - i);
}
template <Stored S>
void narrow_row(void* out, const float* in, int64_t n) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) write<S>(out, i, roundable<S>(load(in + i)));
  if (i < n) write<S>(out, i, roundable<S>(load(in + i, n - i, 0.0f)), n - i);
}
template <Stored S>
void divide_row(void* out, const float* in, float divisor, int64_t n) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth)
    write<S>(out, i, roundable<S>(load(in + i) / splat(divisor)));
  if (i == n) return;
  write<S>(out, i, roundable<S>(load(in + i, n - i, 0.0f) / splat(divisor)), n - i);
}
template <Stored S>
void round_row(float* out, const float* in, int64_t n) {
  each<kF32>(out, n, [=](auto at) { return rounded<S>(roundable<S>(at(in))); });
}

template <Stored S, class Formula>
void map_row(void* out, const void* a, const void* b, const void* c, float number, float shift,
             int64_t n) {
  const Lanes<S> m{splat(number), splat(shift)};
  if constexpr (Formula::kInputs == 1) {
    each<S>(out, n, [=](auto at) { return Formula::of(m, at(a)); });
  } else if constexpr (Formula::kInputs == 2) {
    const auto f = [=](auto at) { return Formula::of(m, at(a), at(b)); };
    if constexpr (Formula::kGivesBool) each_bool<S>(out, n, f);
    else each<S>(out, n, f);
  } else if constexpr (Formula::kHasCondition) {
    each<S>(out, n, [=](auto at) { return Formula::of(m, at.flags(a), at(b), at(c)); });
  } else {
    each<S>(out, n, [=](auto at) { return Formula::of(m, at(a), at(b), at(c)); });
  }
}
template <class Formula>
void map_bool_row(void* out, const void* a, const void* b, const void*, float, float, int64_t n) {
  const Lanes<kF32> m{};
  each_bool<kF32>(out, n, [=](auto at) { return Formula::of(m, at.flags(a), at.flags(b)); });
}
template <class Formula>
constexpr MapRow map_of_bools() {
  if constexpr (Formula::kTakesBools) return map_bool_row<Formula>;
  else return nullptr;
}

void score(float* x, float factor, float cap, int64_t n) {
  if (cap > 0) {
    each<kF32>(x, n, [=](auto at) {
      return splat(cap) * hyperbolic_tangent(at(x) * splat(factor) / splat(cap));
    });
  } else if (factor != 1) {
    map_row<kF32, formulas::multiply>(x, x, nullptr, nullptr, factor, 0, n);
  }
}

template <Stored S, bool RoundBefore>
void rms_normalised(void* out, const void* x, float factor, const void* weight, float offset,
                    int64_t n) {
  each<S>(out, n, [=](auto at) {
    const F normed = at(x) * splat(factor);
    return (splat(offset) + at(weight)) * (RoundBefore ? rounded<S>(normed) : normed);
  });
}

template <Stored S>
void normalised(void* out, const void* x, float mean, float factor, const void* weight,
                const void* bias, int64_t n) {
  const auto scaled = [=](auto at) { return (at(x) - splat(mean)) * splat(factor) * at(weight); };
  if (bias) each<S>(out, n, [=](auto at) { return scaled(at) + at(bias); });
  else each<S>(out, n, scaled);
}

template <Stored S>
void rotate(void* y1, void* y2, const void* x1, const void* x2, const void* c1, const void* s1,
            const void* c2, const void* s2, int64_t n) {
  const auto turn = [=](auto at, auto put) {
    const F a = at(x1), b = at(x2);
    const F first = rounded<S>(a * at(c1)) - rounded<S>(b * at(s1));
    const F second = rounded<S>(b * at(c2)) + rounded<S>(a * at(s2));
    put(y1, first);
    put(y2, second);
  };
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    turn([i](const void* row) { return read<S>(row, i); },
         [i](void* row, F v) { write<S>(row, i, v); });
  }
  if (i == n) return;
  turn([i, n](const void* row) { return read<S>(row, i, n - i, 0.0f); },
       [i, n](void* row, F v) { write<S>(row, i, v, n - i); });
}

// Reductions. term(sum, x, put) returns the lane sums of one part with the elements x(row) added;
// put(row, v) stores floats in their place; `fill` replaces elements past the end and must not
// change the sum.
template <Stored S, class Term>
inline float reduce(int64_t n, float fill, Term term) {
  F sum[kParts] = {};  // in registers: a struct would be stored in every turn
  const auto whole = [&](F s, int64_t i) {
    return term(
        s, [i](const void* x) { return read<S>(x, i); }, [i](float* x, F v) { store(x + i, v); });
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma GCC unroll 8
    for (int j = 0; j < kParts; ++j) sum[j] = whole(sum[j], i + j * kWidth);
  }
  Partial sums;
  for (int j = 0; j < kParts; ++j) sums.part[j] = sum[j];
  int j = 0;
  for (; i + kWidth <= n; i += kWidth, ++j) sums.part[j] = whole(sums.part[j], i);
  if (i < n) {
    sums.part[j] = term(
        sums.part[j], [=](const void* x) { return read<S>(x, i, n - i, fill); },
        [=](float* x, F v) { store(x + i, v, n - i); });
  }
  return total(sums);
}

template <Stored S>
float sum(const void* x, int64_t n) {
  return reduce<S>(n, 0, [=](F s, auto at, auto) { return s + at(x); });
}
template <Stored S>
float sum_squares(const void* x, int64_t n) {
  return reduce<S>(n, 0, [=](F s, auto at, auto) {
    const F v = at(x);
    return multiply_add(v, v, s);
  });
}
template <Stored S>
float sum_squared_deviations(const void* x, float mean, int64_t n) {
  return reduce<S>(n, mean, [=](F s, auto at, auto) {
    const F v = at(x) - splat(mean);
    return multiply_add(v, v, s);
  });
}
void multiply_add(float* out, const float* a, const float* b, int64_t n) {
  each<kF32>(out, n, [=](auto at) { return multiply_add(at(a), at(b), at(out)); });
}
float dot(const float* a, const float* b, int64_t n) {
  return reduce<kF32>(n, 0, [=](F s, auto at, auto) { return multiply_add(at(a), at(b), s); });
}
// Every row of a has the lanes and the order of dot(), so that its sum does not depend on the
// others.
template <Stored S, int Rows>
void dots(float* sums, const float* a, int64_t lda, const void* x, int64_t n) {
  Partial partial[Rows] = {};
  F sum[Rows][kParts] = {};
  const auto add = [&](F& s, int row, int64_t i, F v) {
    s = multiply_add(load(a + row * lda + i), v, s);
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma GCC unroll 8
    for (int j = 0; j < kParts; ++j) {
      const F v = read<S>(x, i + j * kWidth);
#pragma GCC unroll 4
      for (int row = 0; row < Rows; ++row) add(sum[row][j], row, i + j * kWidth, v);
    }
  }
  for (int row = 0; row < Rows; ++row) {
    for (int j = 0; j < kParts; ++j) partial[row].part[j] = sum[row][j];
  }
  int j = 0;
  for (; i + kWidth <= n; i += kWidth, ++j) {
    for (int row = 0; row < Rows; ++row) add(partial[row].part[j], row, i, read<S>(x, i));
  }
  for (int row = 0; row < Rows; ++row) {
    if (i < n) {
      F& last = partial[row].part[j];
      last = multiply_add(load(a + row * lda + i, n - i, 0.0f), read<S>(x, i, n - i, 0.0f), last);
    }
    sums[row] = total(partial[row]);
  }
}
template <Stored S>
float exp_sum(float* out, const void* x, float shift, int64_t n) {
  return reduce<S>(n, -__builtin_inff(), [=](F s, auto at, auto put) {
    const F e = exponential(at(x) - splat(shift));
    put(out, e);
    return s + e;
  });
}

template <Stored S>
float max(const void* x, float start, int64_t n) {
  F best[2] = {splat(start), splat(start)};
  int64_t i = 0;
  for (; i + 2 * kWidth <= n; i += 2 * kWidth) {
    best[0] = maximum(best[0], read<S>(x, i));
    best[1] = maximum(best[1], read<S>(x, i + kWidth));
  }
  if (i + kWidth <= n) {
    best[0] = maximum(best[0], read<S>(x, i));
    i += kWidth;
  }
  if (i < n) best[0] = maximum(best[0], read<S>(x, i, n - i, start));
  return fold(maximum(best[0], best[1]), [](auto a, auto b) { return a > b ? a : b; });
}

template <Stored S>
void softmax_vector(void* out, const void* x, int64_t n) {
  constexpr float lowest = -__builtin_inff();
  const F v = n == kWidth ? read<S>(x, 0) : read<S>(x, 0, n, lowest);
  const float max = fold(maximum(splat(lowest), v), [](auto a, auto b) { return a > b ? a : b; });
  const F e = exponential(v - splat(max == lowest ? 0.0f : max));
  const float sum = fold(e, [](auto a, auto b) { return a + b; });
  const F result = roundable<S>(e / splat(sum == 0 ? 1.0f : sum));
  if (n == kWidth) write<S>(out, 0, result);
  else write<S>(out, 0, result, n);
}

void cos_sin_row(float* cos, float* sin, const float* angles, double factor, int64_t n) {
  F c, s;
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    cos_sin(load(angles + i), factor, c, s);
    store(cos + i, c);
    store(sin + i, s);
  }
  if (i == n) return;
  cos_sin(load(angles + i, n - i, 0.0f), factor, c, s);
  store(cos + i, c, n - i);
  store(sin + i, s, n - i);
}

template <Stored S, class... F>
constexpr RowFunctions rows_of(FormulaList<void, F...>) {
  return {
      widen_row<S>,
      narrow_row<S>,
      divide_row<S>,
      round_row<S>,
      {map_row<S, F>...},
      sum<S>,
      sum_squares<S>,
      sum_squared_deviations<S>,
      max<S>,
      {dots<S, 1>, dots<S, 2>, dots<S, 3>, dots<S, 4>},
      exp_sum<S>,
      softmax_vector<S>,
      {rms_normalised<S, true>, rms_normalised<S, false>},
      normalised<S>,
      rotate<S>,
  };
}

#ifndef PLUMB_AMX
constexpr const MatrixUnit* kMatrixUnit = nullptr;
#endif

template <class... F, class... R>
constexpr Simd table_of(FormulaList<void, F...> formulas, FormulaList<void, R...>) {
  return {
      PLUMB_SIMD_NAME,
      2 * kWidth,
      {rows_of<kF16>(formulas), rows_of<kBf16>(formulas), rows_of<kF32>(formulas)},
      {map_of_bools<F>()...},
      {reduction_row<R>()...},
      dot,
      multiply_add,
      score,
      cos_sin_row,
      tile,
      kPairTile,
      transpose8,
      kMatrixUnit,
  };
}
constexpr Simd kTable = table_of(Formulas(), Reductions());

}  // namespace

const Simd& PLUMB_SIMD_TABLE() { return kTable; }

}  // namespace plumb::cpu
