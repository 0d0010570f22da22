// __half and __nv_bfloat16: arithmetic in float32, rounded once, as the hardware's.
#pragma once

#include <cmath>
#include <type_traits>

#include "kernels/gpu/gpu.h"

namespace plumb::PLUMB_GPU_VENDOR::plain {

template <class Storage>
struct Sixteen {
  Storage v;

  Sixteen() = default;
  template <class T>
  requires std::is_arithmetic_v<T> Sixteen(T x) : v(from_float<Storage>(static_cast<float>(x))) {}
  static Sixteen of_bits(uint16_t bits) {
    Sixteen out;
    out.v.bits = bits;
    return out;
  }
  operator float() const { return to_float(v); }

  Sixteen& operator+=(Sixteen b) { return *this = *this + b; }
  Sixteen& operator-=(Sixteen b) { return *this = *this - b; }
  Sixteen& operator*=(Sixteen b) { return *this = *this * b; }
  Sixteen& operator/=(Sixteen b) { return *this = *this / b; }
  Sixteen operator-() const { return of_bits(v.bits ^ 0x8000u); }

  friend Sixteen operator+(Sixteen a, Sixteen b) { return float(a) + float(b); }
  friend Sixteen operator-(Sixteen a, Sixteen b) { return float(a) - float(b); }
  friend Sixteen operator*(Sixteen a, Sixteen b) { return float(a) * float(b); }
  friend Sixteen operator/(Sixteen a, Sixteen b) { return float(a) / float(b); }
  friend bool operator==(Sixteen a, Sixteen b) { return float(a) == float(b); }
  friend bool operator!=(Sixteen a, Sixteen b) { return float(a) != float(b); }
  friend bool operator<(Sixteen a, Sixteen b) { return float(a) < float(b); }
  friend bool operator>(Sixteen a, Sixteen b) { return float(a) > float(b); }
  friend bool operator<=(Sixteen a, Sixteen b) { return float(a) <= float(b); }
  friend bool operator>=(Sixteen a, Sixteen b) { return float(a) >= float(b); }
};

template <class Storage>
struct alignas(4) SixteenTwo {
  Sixteen<Storage> x, y;
};

}  // namespace plumb::PLUMB_GPU_VENDOR::plain

template <class S>
using PlumbSixteen = plumb::PLUMB_GPU_VENDOR::plain::Sixteen<S>;
template <class S>
using PlumbSixteenTwo = plumb::PLUMB_GPU_VENDOR::plain::SixteenTwo<S>;

#define PLUMB_SIXTEEN(name, expression)                        \
  template <class S>                                           \
  PlumbSixteen<S> name(PlumbSixteen<S> a, PlumbSixteen<S> b) { \
    return expression;                                         \
  }
PLUMB_SIXTEEN(__hadd, a + b)
PLUMB_SIXTEEN(__hsub, a - b)
PLUMB_SIXTEEN(__hmul, a* b)
PLUMB_SIXTEEN(__hdiv, a / b)
PLUMB_SIXTEEN(__hmax, a < b ? b : a)
PLUMB_SIXTEEN(__hmin, b < a ? b : a)
#undef PLUMB_SIXTEEN

template <class S>
PlumbSixteen<S> __hfma(PlumbSixteen<S> a, PlumbSixteen<S> b, PlumbSixteen<S> c) {
  return double(float(a)) * double(float(b)) + double(float(c));
}
template <class S>
PlumbSixteen<S> __hneg(PlumbSixteen<S> a) {
  return -a;
}
template <class S>
PlumbSixteen<S> __habs(PlumbSixteen<S> a) {
  return PlumbSixteen<S>::of_bits(a.v.bits & 0x7fffu);
}
template <class S>
PlumbSixteen<S> hexp(PlumbSixteen<S> a) {
  return std::exp(float(a));
}
template <class S>
PlumbSixteen<S> hsqrt(PlumbSixteen<S> a) {
  return std::sqrt(float(a));
}
template <class S>
PlumbSixteen<S> hrsqrt(PlumbSixteen<S> a) {
  return 1.0f / std::sqrt(float(a));
}
template <class S>
PlumbSixteenTwo<S> __hadd2(PlumbSixteenTwo<S> a, PlumbSixteenTwo<S> b) {
  return {a.x + b.x, a.y + b.y};
}
template <class S>
PlumbSixteenTwo<S> __hmul2(PlumbSixteenTwo<S> a, PlumbSixteenTwo<S> b) {
  return {a.x * b.x, a.y * b.y};
}
template <class S>
PlumbSixteenTwo<S> __hfma2(PlumbSixteenTwo<S> a, PlumbSixteenTwo<S> b, PlumbSixteenTwo<S> c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
template <class S>
float __low2float(PlumbSixteenTwo<S> a) {
  return a.x;
}
template <class S>
float __high2float(PlumbSixteenTwo<S> a) {
  return a.y;
}
