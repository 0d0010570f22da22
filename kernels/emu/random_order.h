// RandomOrder: the same permutations for the same seed everywhere.
#pragma once

#include <bit>
#include <cstdint>

namespace plumb::emulator {

class RandomOrder {
 public:
  explicit RandomOrder(uint64_t seed = 0)
      : random_(seed != 0), state_(seed * 0x9e3779b97f4a7c15u | 1) {
    for (int i = 0; i < 4; ++i) next();
  }

  // Calls visit(i) for every i in [0, count): ascending, or in an order of its own per call where a
  // seed was given.
  template <class Visit>
  void each(uint64_t count, Visit visit) {
    const uint64_t size = std::bit_ceil(count);
    // i -> a i + b is a permutation modulo a power of two for odd a.
    const uint64_t a = random_ ? next() | 1 : 1, b = random_ ? next() : 0;
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t k = (a * i + b) & (size - 1);
      if (k < count) visit(k);
    }
  }

 private:
  uint64_t next() {  // xorshift64*, Marsaglia 2003, Vigna 2016
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return (state_ * 0x2545f4914f6cdd1du) >> 20;
  }

  bool random_;
  uint64_t state_;
};

}  // namespace plumb::emulator
