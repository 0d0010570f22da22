// The neutral surface of the GPU kernels: the only vendor words that a file of kernels/gpu may use.
// Three vendors, chosen by the compiler that reads the file: nvcc (cuda), hipcc (hip), or any host
// C++20 compiler (emu: every GPU thread is a fiber on the CPU). Each vendor's code lives in a
// namespace of its own, plumb::cuda, plumb::hip, plumb::emu, so that all of them fit into one
// binary.
//
// A vendor header defines, in its namespace:
//   Dim {x, y, z}; Stream
//   thread_index() block_index() block_size() grid_size()        device side
//   block_barrier() warp_barrier()
//   wait_for_previous_kernel()      see launch_overlapped
//   prefetch(p)   that address will be read: a hint that no result depends on
//   shuffle<Wave>(v, lane) shuffle_xor<Wave>(v, mask) shuffle_down<Wave>(v, n) ballot<Wave>(bool)
//   block_shared<T, Tag>() -> T&     one object of shared memory per type, trivially constructible
//   dynamic_shared<T>() -> T*
//   atomic_add(p, v) -> the old value                            int, unsigned, float
//   last_to_pass(ticket, blocks) -> in every thread of the block, whether all other blocks have
//                                   passed the ticket; it then sees all that they wrote before. The
//                                   ticket starts at 0 and ends there. Once per kernel
//   reciprocal_sqrt(x) fused_multiply_add(a, b, c)
//   approximate_reciprocal_sqrt(x)                                      off by 2 ulp at most
//   approximate_exp(x) approximate_exp2(x) approximate_quotient(a, b)   relative error below 2^-20
//   while |x| and the
//                                                   logarithm of b are moderate
//   detail::copy_aligned<Bytes, Whole>(to, from)
//   and, with PLUMB_DEVICE_CONVERSIONS, detail::to_float(Float16) detail::from_float<T>(x): the
//   hardware's conversions, with the bits of those below (but for NaN payloads)
//   with PLUMB_PACKED_ARITHMETIC, detail::of_pairs<T, Arithmetic>(a, b), two 16-bit numbers in each
//   word, and detail::narrow_pair<T>(low, high)
// host side:
//   launch<Kernel>(name, grid, block, shared_bytes, stream, arguments...)   throws DeviceError
//   launch_overlapped<Kernel>(the same)   a kernel whose threads all call
//   wait_for_previous_kernel()
//                                         before they touch memory: its blocks may already be there
//                                         when the kernel before it ends. The emulator insists.
//   with_wave(stream, [&]<int Wave>() {...})     calls with the wave width of the stream's device
//   host_allocate host_free      memory of the host that copies from and to the device are fast
//   with memory_allocate memory_free memory_fill copy_to_device copy_to_host use_device make_stream
//   end_stream wait_for count_multiprocessors kExactMemory kChecksBounds
//   GraphHandle begin_capture end_capture abandon_capture launch_graph end_graph
//                                                                what gpu_device.cu needs
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/core/dtype.h"

namespace plumb {
enum class Arithmetic { product, sum, difference };

}  // namespace plumb

#if defined(__HIPCC__)
#include "kernels/gpu/gpu_hip.h"
#elif defined(__CUDACC__)
#include "kernels/gpu/gpu_cuda.h"
#else
#include "kernels/gpu/gpu_emu.h"
#endif

namespace plumb::PLUMB_GPU_VENDOR {

// --- Elements: storage types and their conversions, round to nearest even, the same bits
// everywhere.

__host__ __device__ inline float to_float(float x) { return x; }
__host__ __device__ inline float to_float(BFloat16 x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16);
}
__host__ __device__ inline float to_float(Float16 x) {
#if defined(PLUMB_DEVICE_CONVERSIONS)
  return detail::to_float(x);
#else
  const uint32_t sign = (x.bits & 0x8000u) << 16, magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {
    return __builtin_bit_cast(float, sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  }
  // 2^112 moves the exponent from f16's bias to f32's, subnormals included.
  const float scaled = __builtin_bit_cast(float, magnitude << 13) * 0x1p112f;
  return __builtin_bit_cast(float, sign | __builtin_bit_cast(uint32_t, scaled));
#endif
}

template <class T>
__host__ __device__ inline T from_float(float x) {
#if defined(PLUMB_DEVICE_CONVERSIONS)
  return detail::from_float<T>(x);
#else
  const uint32_t bits = __builtin_bit_cast(uint32_t, x), magnitude = bits & 0x7fffffffu;
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    if (magnitude > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
    return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
  } else {
    const uint32_t sign = (bits >> 16) & 0x8000u;
    if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
    if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};
    if (magnitude < 0x38800000u) {  // subnormal: the float adder rounds
      const float aligned = __builtin_bit_cast(float, magnitude) + 0.5f;
      return {static_cast<uint16_t>(sign | (__builtin_bit_cast(uint32_t, aligned) - 0x3f000000u))};
    }
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return {static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13))};
  }
#endif
}

// x as the storage type would hold it: an R() of ops.h in the middle of a kernel.
template <class T>
__host__ __device__ inline float rounded(float x) {
  return to_float(from_float<T>(x));
}

// --- Vectors: one aligned access of up to 16 bytes.

template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  T v[N];
  __host__ __device__ T& operator[](int i) { return v[i]; }
  __host__ __device__ const T& operator[](int i) const { return v[i]; }
};

template <class T>
inline constexpr int kVector = 16 / static_cast<int>(sizeof(T));  // elements of a 16-byte access

template <int N, class T>
__device__ inline Vector<T, N> load_vector(const T* p PLUMB_SITE_PARAMETER) {
#if defined(PLUMB_WORD_LOADS)
  return __builtin_bit_cast(Vector<T, N>, detail::load_word<sizeof(Vector<T, N>)>(p));
#else
  Vector<T, N> out;
  detail::copy_aligned<sizeof(out), true>(&out, p PLUMB_SITE_ARGUMENT);
  return out;
#endif
}
template <int N, class T>
__device__ inline void store_vector(T* p, const Vector<T, N>& value PLUMB_SITE_PARAMETER) {
  detail::copy_aligned<sizeof(value), true>(p, &value PLUMB_SITE_ARGUMENT);
}
// The same of a vector that is made element by element: it stays in registers. Not in an unrolled
// loop, where nvcc makes four stores of one that store_vector() keeps whole.
template <int N, class T>
__device__ inline void store_elements(T* p, const Vector<T, N>& value PLUMB_SITE_PARAMETER) {
  detail::copy_aligned<sizeof(value), false>(p, &value PLUMB_SITE_ARGUMENT);
}

// --- Arithmetic on vectors that ends in the storage type. Hardware that does two 16-bit numbers at
// once gives the same bits: the products are exact in float32, and where a float32 sum is not, its
// smaller term is too small to matter.

namespace detail {

#if defined(PLUMB_PACKED_ARITHMETIC)
template <class T, int N>
inline constexpr bool kPacked = sizeof(T) == 2 && N % 2 == 0;
#else
template <class T, int N>
inline constexpr bool kPacked = false;
template <class T>
__device__ uint32_t narrow_pair(float low, float high);  // never called
template <class T, Arithmetic>
__device__ uint32_t of_pairs(uint32_t a, uint32_t b);  // never called
#endif

template <Arithmetic Operation>
__device__ inline float of(float a, float b) {
  return Operation == Arithmetic::product ? a * b : Operation == Arithmetic::sum ? a + b : a - b;
}

}  // namespace detail

template <Arithmetic Operation, class T, int N>
__device__ inline Vector<T, N> combined(const Vector<T, N>& a, const Vector<T, N>& b) {
  Vector<T, N> out;
  if constexpr (detail::kPacked<T, N>) {
    using Words = Vector<uint32_t, N / 2>;
    const Words x = __builtin_bit_cast(Words, a), y = __builtin_bit_cast(Words, b);
    Words words;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) words[i] = detail::of_pairs<T, Operation>(x[i], y[i]);
    out = __builtin_bit_cast(Vector<T, N>, words);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i)
      out[i] = from_float<T>(detail::of<Operation>(to_float(a[i]), to_float(b[i])));
  }
  return out;
}

// R(a b), R(a + b), R(a - b).
template <class T, int N>
__device__ inline Vector<T, N> rounded_product(const Vector<T, N>& a, const Vector<T, N>& b) {
  return combined<Arithmetic::product>(a, b);
}
template <class T, int N>
__device__ inline Vector<T, N> rounded_sum(const Vector<T, N>& a, const Vector<T, N>& b) {
  return combined<Arithmetic::sum>(a, b);
}
template <class T, int N>
__device__ inline Vector<T, N> rounded_difference(const Vector<T, N>& a, const Vector<T, N>& b) {
  return combined<Arithmetic::difference>(a, b);
}

template <class T, int N>
__device__ inline Vector<T, N> narrowed(const float (&x)[N]) {
  Vector<T, N> out;
  if constexpr (detail::kPacked<T, N>) {
    Vector<uint32_t, N / 2> words;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) words[i] = detail::narrow_pair<T>(x[2 * i], x[2 * i + 1]);
    out = __builtin_bit_cast(Vector<T, N>, words);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = from_float<T>(x[i]);
  }
  return out;
}

// The elements of a vector in float32. Read as words: compilers take 16-bit ones apart clumsily.
template <class T, int N>
struct Floats {
  float v[N];
  __device__ explicit Floats(const Vector<T, N>& x) {
    if constexpr (detail::kPacked<T, N>) {
      using Words = Vector<uint32_t, N / 2>;
      const Words words = __builtin_bit_cast(Words, x);
#pragma unroll
      for (int i = 0; i < N / 2; ++i) {
        v[2 * i] = to_float(T{static_cast<uint16_t>(words[i])});
        v[2 * i + 1] = to_float(T{static_cast<uint16_t>(words[i] >> 16)});
      }
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = to_float(x[i]);
    }
  }
  __device__ float operator[](int i) const { return v[i]; }
};

template <class T, int N>
__device__ inline void widen(const Vector<T, N>& x, float (&out)[N]) {
  const Floats<T, N> wide(x);
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = wide[i];
}

// --- Reductions over one wave: the same butterfly, hence the same bits, for every vendor.

template <int Wave>
__device__ inline float warp_sum(float v PLUMB_SITE_PARAMETER) {
#pragma unroll
  for (int offset = Wave / 2; offset > 0; offset >>= 1) {
    v += shuffle_xor<Wave>(v, offset PLUMB_SITE_ARGUMENT);
  }
  return v;
}

template <int Wave>
__device__ inline float warp_max(float v PLUMB_SITE_PARAMETER) {
#pragma unroll
  for (int offset = Wave / 2; offset > 0; offset >>= 1) {
    const float other = shuffle_xor<Wave>(v, offset PLUMB_SITE_ARGUMENT);
    v = other > v || other != other ? other : v;  // NaN wins
  }
  return v;
}

}  // namespace plumb::PLUMB_GPU_VENDOR
