// Atomic operations on integers and floats, in global and shared memory.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

namespace plumb::plain {

template <size_t Bytes>
struct Bits;
template <>
struct Bits<2> {
  using Type = uint16_t;
};
template <>
struct Bits<4> {
  using Type = uint32_t;
};
template <>
struct Bits<8> {
  using Type = uint64_t;
};

// *p becomes next(*p); the value before. Always in the words that the checker knows as atomic.
template <class T, class Next>
T updated(T* p, Next next) {
  using Word = typename Bits<sizeof(T)>::Type;
  auto* word = reinterpret_cast<Word*>(p);
  Word seen = __atomic_load_n(word, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(
      word, &seen, std::bit_cast<Word>(static_cast<T>(next(std::bit_cast<T>(seen)))), false,
      __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return std::bit_cast<T>(seen);
}

}  // namespace plumb::plain

template <class T, class V>
T atomicAdd(T* p, V v) {
  return plumb::plain::updated(p, [=](T x) { return x + static_cast<T>(v); });
}
template <class T, class V>
T atomicSub(T* p, V v) {
  return plumb::plain::updated(p, [=](T x) { return x - static_cast<T>(v); });
}
template <class T, class V>
T atomicMax(T* p, V v) {
  return plumb::plain::updated(p,
                               [=](T x) { return x < static_cast<T>(v) ? static_cast<T>(v) : x; });
}
template <class T, class V>
T atomicMin(T* p, V v) {
  return plumb::plain::updated(p,
                               [=](T x) { return static_cast<T>(v) < x ? static_cast<T>(v) : x; });
}
template <class T, class V>
T atomicExch(T* p, V v) {
  return plumb::plain::updated(p, [=](T) { return static_cast<T>(v); });
}
template <class T, class V>
T atomicAnd(T* p, V v) {
  return plumb::plain::updated(p, [=](T x) { return x & static_cast<T>(v); });
}
template <class T, class V>
T atomicOr(T* p, V v) {
  return plumb::plain::updated(p, [=](T x) { return x | static_cast<T>(v); });
}
template <class T, class V>
T atomicXor(T* p, V v) {
  return plumb::plain::updated(p, [=](T x) { return x ^ static_cast<T>(v); });
}
inline unsigned atomicInc(unsigned* p, unsigned most) {
  return plumb::plain::updated(p, [=](unsigned x) { return x >= most ? 0 : x + 1; });
}
inline unsigned atomicDec(unsigned* p, unsigned most) {
  return plumb::plain::updated(p, [=](unsigned x) { return x == 0 || x > most ? most : x - 1; });
}
template <class T, class U, class V>
T atomicCAS(T* p, U compare, V v) {
  return plumb::plain::updated(
      p, [=](T x) { return x == static_cast<T>(compare) ? static_cast<T>(v) : x; });
}
