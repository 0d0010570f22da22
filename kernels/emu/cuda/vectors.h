// float4, int2, dim3 and their like.
#pragma once

#include <cstdint>

#include "kernels/emu/emulator.h"

namespace plumb::plain {

template <class T>
struct Two {
  T x, y;
};
template <class T>
struct Three {
  T x, y, z;
};
template <class T>
struct Four {
  T x, y, z, w;
};

}  // namespace plumb::plain

// Types of their own, as programs declare and overload them; aligned as on a GPU.
#define PLUMB_VECTORS(type, name, align2, align4)                               \
  struct alignas(align2) name##2 : plumb::plain::Two<type>{};                   \
  struct name##3 : plumb::plain::Three<type>{};                                 \
  struct alignas(align4) name##4 : plumb::plain::Four<type>{};                  \
  inline name##2 make_##name##2(type x, type y) { return {{x, y}}; }            \
  inline name##3 make_##name##3(type x, type y, type z) { return {{x, y, z}}; } \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {{x, y, z, w}}; }

PLUMB_VECTORS(float, float, 8, 16)
PLUMB_VECTORS(double, double, 16, 16)
PLUMB_VECTORS(int, int, 8, 16)
PLUMB_VECTORS(unsigned, uint, 8, 16)
PLUMB_VECTORS(short, short, 4, 8)
PLUMB_VECTORS(unsigned short, ushort, 4, 8)
PLUMB_VECTORS(signed char, char, 2, 4)
PLUMB_VECTORS(unsigned char, uchar, 2, 4)
PLUMB_VECTORS(long long, longlong, 16, 16)
PLUMB_VECTORS(unsigned long long, ulonglong, 16, 16)
#undef PLUMB_VECTORS

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr dim3(plumb::emulator::Dim d) : x(d.x), y(d.y), z(d.z) {}
};
