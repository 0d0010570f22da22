// The language of the kernels in this folder, which is OpenCL C, GLSL and C++ at once: README.md.
// What the three lack in common is a macro here.
//
// Defined before it is read: STORAGE (0 f32, 1 bf16, 2 f16) by the build; THREADS, a power of two
// of 256 at most, and SHARED_ARRAYS by the kernel file. Indices in [] and in LOAD are i32, those of
// LOAD_AT i64.
#if defined(PLUMB_GLSL)
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_8bit_storage : require
#define i32 int
#define u32 uint
#define i64 int64_t
#define u64 uint64_t
#define STRUCT(name) struct name
#define END(name)
#define FUNCTION
#define I32(x) int(x)
#define U32(x) uint(x)
#define I64(x) int64_t(x)
#define U64(x) uint64_t(x)
#define F32(x) float(x)
#define BITS(x) floatBitsToUint(x)
#define FROM_BITS(x) uintBitsToFloat(x)
#define NEAREST(x) roundEven(x)
#define FLOOR(x) floor(x)
#define NATIVE_RSQRT(x) inversesqrt(x)
#define ABS(x) abs(x)
#define FMA(a, b, c) fma(a, b, c)
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer F32At { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 1) buffer U8At { uint8_t v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) buffer U16At { uint16_t v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer U32At { uint v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer I64At { int64_t v[]; };
#define AT_F32(p, i) F32At(p).v[i]
#define GET_U8(p, i) uint(U8At(p).v[i])
#define PUT_U8(p, i, x) U8At(p).v[i] = uint8_t(x)
#define GET_U16(p, i) uint(U16At(p).v[i])
#define PUT_U16(p, i, x) U16At(p).v[i] = uint16_t(x)
#define AT_U32(p, i) U32At(p).v[i]
#define AT_I64(p, i) I64At(p).v[i]
#define ATOMIC_ADD(p, x) atomicAdd(U32At(p).v[0], x)
#define SHARED(type, name, extents) shared type name extents;
#define THREAD int(gl_LocalInvocationID.x)
#define GROUP int(gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x)
#define BARRIER() barrier()
#define SCRATCH
#define SCRATCH_PARAMETER
layout(local_size_x = THREADS) in;
layout(constant_id = 0) const bool kFused = true;  // fma rounds once
layout(constant_id = 1) const int kVariant = 0;
#define VARIANT(given) kVariant
shared float scratch[THREADS];
#define KERNEL(name, Arguments)                                                              \
  layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer ArgumentsAt { \
    Arguments p;                                                                             \
  };                                                                                         \
  layout(push_constant) uniform Push {                                                       \
    ArgumentsAt at;                                                                          \
    uint groups;                                                                             \
  }                                                                                          \
  push;                                                                                      \
  SHARED_ARRAYS                                                                              \
  void main() {                                                                              \
    if (GROUP >= int(push.groups)) return; /* a side of a grid may have 65535 groups only */ \
    const Arguments p = push.at.p;

#elif defined(__OPENCL_VERSION__)
#pragma OPENCL FP_CONTRACT OFF
#define i32 int
#define u32 uint
#define i64 long
#define u64 ulong
#define STRUCT(name)        \
  typedef struct name name; \
  struct name
#define END(name)
#define FUNCTION static inline
#define I32(x) ((int)(x))
#define U32(x) ((uint)(x))
#define I64(x) ((long)(x))
#define U64(x) ((ulong)(x))
#define F32(x) ((float)(x))
#define BITS(x) as_uint(x)
#define FROM_BITS(x) as_float(x)
#define NEAREST(x) rint(x)
#define FLOOR(x) floor(x)
#define NATIVE_RSQRT(x) rsqrt(x)
#define ABS(x) fabs(x)
#define FMA(a, b, c) fma(a, b, c)
#define AT_F32(p, i) (((__global float*)(p))[i])
#define GET_U8(p, i) ((uint)((__global const uchar*)(p))[i])
#define PUT_U8(p, i, x) ((__global uchar*)(p))[i] = (uchar)(x)
#define GET_U16(p, i) ((uint)((__global const ushort*)(p))[i])
#define PUT_U16(p, i, x) ((__global ushort*)(p))[i] = (ushort)(x)
#define AT_U32(p, i) (((__global uint*)(p))[i])
#define AT_I64(p, i) (((__global long*)(p))[i])
#define ATOMIC_ADD(p, x) atomic_add((volatile __global uint*)(p), x)
#define SHARED(type, name, extents) __local type name extents;
#define THREAD ((int)get_local_id(0))
#define GROUP ((int)get_group_id(0))
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define SCRATCH , scratch
#define SCRATCH_PARAMETER , __local float* scratch
#if !defined(SPLIT_PRODUCTS)
#define kFused true  // fma rounds once
#else
#define kFused false
#endif
#define VARIANT(given) (given)  // one program: each costs a second to build
#define KERNEL(name, Arguments)                                                                \
  __kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void name(const Arguments p) { \
    __local float scratch[THREADS];                                                            \
    SHARED_ARRAYS

#else  // C++: the words of kernels/gpu/gpu.h
#define FUNCTION __device__ static inline
#define I32(x) static_cast<i32>(x)
#define U32(x) static_cast<u32>(x)
#define I64(x) static_cast<i64>(x)
#define U64(x) static_cast<u64>(x)
#define F32(x) static_cast<float>(x)
#define BITS(x) __builtin_bit_cast(u32, F32(x))
#define FROM_BITS(x) __builtin_bit_cast(float, U32(x))
#define NEAREST(x) rintf(x)
#define FLOOR(x) floorf(x)
#define NATIVE_RSQRT(x) (1.0f / sqrtf(x))
#define ABS(x) fabsf(x)
#define FMA(a, b, c) fused_multiply_add(a, b, c)
#define AT_F32(p, i) (reinterpret_cast<float*>(p)[i])
#define GET_U8(p, i) U32(reinterpret_cast<const uint8_t*>(p)[i])
#define PUT_U8(p, i, x) reinterpret_cast<uint8_t*>(p)[i] = static_cast<uint8_t>(x)
#define GET_U16(p, i) U32(reinterpret_cast<const uint16_t*>(p)[i])
#define PUT_U16(p, i, x) reinterpret_cast<uint16_t*>(p)[i] = static_cast<uint16_t>(x)
#define AT_U32(p, i) (reinterpret_cast<u32*>(p)[i])
#define AT_I64(p, i) (reinterpret_cast<i64*>(p)[i])
#define ATOMIC_ADD(p, x) atomic_add(reinterpret_cast<u32*>(p), x)
#define SHARED(type, name, extents) \
  struct name##_ {                  \
    type v extents;                 \
  };                                \
  auto& name = block_shared<name##_>().v;
#define THREAD static_cast<i32>(thread_index().x)
#define GROUP static_cast<i32>(block_index().x)
#define BARRIER() block_barrier()
#define SCRATCH , scratch
#define SCRATCH_PARAMETER , float* scratch
#define kFused true
#define VARIANT(given) (given)
#define KERNEL(name, Arguments)             \
  using ArgumentsOf = Arguments;            \
  constexpr unsigned kThreads = THREADS;    \
  __global__ void name(const Arguments p) { \
    wait_for_previous_kernel();             \
    SHARED(float, scratch, [THREADS])       \
    SHARED_ARRAYS
#endif

// C++ has what depends on neither STORAGE nor THREADS once for all kernels.
#if !defined(PLUMB_COMMON_IS_DEFINED)
#include "arguments.h"
#endif

#define INF FROM_BITS(0x7f800000u)
#define NAN_VALUE FROM_BITS(0x7fc00000u)
#define LARGEST I64((U64(1) << 63) - U64(1))  // of i64
#define LEAST I64(U64(1) << 63)
#define FOR_THREADS(i, n) for (i32 i = THREAD; i < (n); i += THREADS)
// The number of this thread among all of the launch.
#define ITEM (I64(GROUP) * I64(THREADS) + I64(THREAD))

#if !defined(PLUMB_COMMON_IS_DEFINED)
// --- Elements. Integers only: a device may flush float32's subnormals.

FUNCTION float from_bf16(u32 x) { return FROM_BITS(x << 16); }
FUNCTION u32 bf16_of_bits(u32 bits) {  // of a float
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits >> 16) | 0x40u;
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}
FUNCTION u32 to_bf16(float x) { return bf16_of_bits(BITS(x)); }
FUNCTION float from_f16(u32 x) {
  u32 sign = (x & 0x8000u) << 16, magnitude = x & 0x7fffu;
  if (magnitude >= 0x7c00u) return FROM_BITS(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude >= 0x400u) return FROM_BITS(sign | ((magnitude << 13) + (112u << 23)));
  float small = F32(magnitude) * 5.9604644775390625e-8f;  // 2^-24: exact
  return sign != 0u ? -small : small;
}
FUNCTION u32 to_f16(float x) {
  u32 bits = BITS(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;
  if (magnitude < 0x38800000u) {  // subnormal: the float adder rounds
    if (magnitude < 0x33000000u) return sign;
    return sign | (BITS(FROM_BITS(magnitude) + 0.5f) - 0x3f000000u);
  }
  return sign | ((magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13);
}

// Where an operand's storage may be another: a number of STORAGE, or 3, bool; from the arguments.
FUNCTION float load_as(i32 storage, u64 p, i64 i) {
  if (storage == 0) return AT_F32(p + U64(I64(4) * i), 0);
  if (storage == 3) return GET_U8(p + U64(i), 0) != 0u ? 1.0f : 0.0f;
  u32 bits = GET_U16(p + U64(I64(2) * i), 0);
  return storage == 1 ? from_bf16(bits) : from_f16(bits);
}
FUNCTION void store_as(i32 storage, u64 p, i64 i, float x) {
  if (storage == 0) {
    AT_F32(p + U64(I64(4) * i), 0) = x;
  } else if (storage == 3) {
    PUT_U8(p + U64(i), 0, x != 0.0f ? 1u : 0u);
  } else {
    PUT_U16(p + U64(I64(2) * i), 0, storage == 1 ? to_bf16(x) : to_f16(x));
  }
}

// Where a row of a tensor with up to three outer axes starts, in elements.
FUNCTION i64 row_offset(Rows rows, i32 row) {
  i32 outer = row / rows.innermost;
  return I64(row % rows.innermost) * rows.stride2 + I64(outer % rows.inner) * rows.stride1 +
         I64(outer / rows.inner) * rows.stride0;
}

// Element i of whole numbers: i64, i32, u32, u8, i8 or bool (0 to 5); and the last bits of x as
// one.
FUNCTION i64 whole_at(i32 dtype, u64 p, i64 i) {
  if (dtype == 0) return AT_I64(p + U64(I64(8) * i), 0);
  if (dtype >= 3) {
    i64 byte = I64(GET_U8(p + U64(i), 0));
    if (dtype == 4 && byte >= I64(128)) byte -= I64(256);
    return dtype == 5 && byte != I64(0) ? I64(1) : byte;
  }
  u32 bits = AT_U32(p + U64(I64(4) * i), 0);
  return dtype == 1 ? I64(I32(bits)) : I64(bits);
}
FUNCTION void put_whole(i32 dtype, u64 p, i64 i, i64 x) {
  if (dtype == 0) {
    AT_I64(p + U64(I64(8) * i), 0) = x;
  } else if (dtype >= 3) {
    PUT_U8(p + U64(i), 0, dtype == 5 ? (x != I64(0) ? 1u : 0u) : U32(x & I64(255)));
  } else {
    AT_U32(p + U64(I64(4) * i), 0) = U32(x & I64(0xffffffffu));
  }
}
// Of many unknown ids the first that is noted is reported: IdError of portable_ops.h.
FUNCTION void note_unknown(u64 error, u32 op, i64 id, i64 place, i64 extent) {
  if (ATOMIC_ADD(error, 1u) != 0u) return;
  AT_U32(error, 1) = op;
  AT_I64(error, 1) = id;
  AT_I64(error, 2) = place;
  AT_I64(error, 3) = extent;
}

#include "functions.h"
FUNCTION i32 smaller(i32 a, i32 b) { return b < a ? b : a; }
FUNCTION float larger(float a, float b) { return b > a || b != b ? b : a; }  // NaN wins
#endif

#if STORAGE == 0
#define BYTES 4
#define LOAD(p, i) AT_F32(p, i)
#define STORE(p, i, x) AT_F32(p, i) = (x)
#define ROUNDED(x) (x)
#elif STORAGE == 1
#define BYTES 2
#define LOAD(p, i) from_bf16(GET_U16(p, i))
#define STORE(p, i, x) PUT_U16(p, i, to_bf16(x))
#define ROUNDED(x) from_bf16(to_bf16(x))
#else
#define BYTES 2
#define LOAD(p, i) from_f16(GET_U16(p, i))
#define STORE(p, i, x) PUT_U16(p, i, to_f16(x))
#define ROUNDED(x) from_f16(to_f16(x))
#endif

// The same at an index that may need 64 bits.
#define LOAD_AT(p, i) LOAD((p) + U64(I64(BYTES) * (i)), 0)
#define STORE_AT(p, i, x) STORE((p) + U64(I64(BYTES) * (i)), 0, x)

#define ROW_AT(p, rows, row) ((p) + U64(I64(BYTES) * row_offset(rows, row)))

// --- Sums and maxima over the threads of a group; every thread gets them.

FUNCTION float block_sum(float v SCRATCH_PARAMETER) {
  scratch[THREAD] = v;
  BARRIER();
  for (i32 n = THREADS / 2; n > 0; n /= 2) {
    if (THREAD < n) scratch[THREAD] += scratch[THREAD + n];
    BARRIER();
  }
  v = scratch[0];
  BARRIER();
  return v;
}
FUNCTION float block_max(float v SCRATCH_PARAMETER) {
  scratch[THREAD] = v;
  BARRIER();
  for (i32 n = THREADS / 2; n > 0; n /= 2) {
    if (THREAD < n) scratch[THREAD] = larger(scratch[THREAD], scratch[THREAD + n]);
    BARRIER();
  }
  v = scratch[0];
  BARRIER();
  return v;
}
#define BLOCK_SUM(v) block_sum(v SCRATCH)
#define BLOCK_MAX(v) block_max(v SCRATCH)
