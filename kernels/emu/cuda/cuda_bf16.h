#pragma once

#include "kernels/emu/cuda/cuda_runtime.h"
#include "kernels/emu/cuda/sixteen.h"

using __nv_bfloat16 = PlumbSixteen<plumb::BFloat16>;
using __nv_bfloat162 = PlumbSixteenTwo<plumb::BFloat16>;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

inline __nv_bfloat16 __float2bfloat16(float x) { return x; }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
inline float __bfloat162float(__nv_bfloat16 x) { return x; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  return __nv_bfloat16::of_bits(bits);
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.v.bits; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return make_float2(v.x, v.y); }
