// The order of top_k as whole numbers, the largest first: read by every device.
#pragma once

#include <bit>
#include <cstdint>

namespace plumb::order {

// Of values of up to 64 bits, and a place.
__extension__ using Wide = unsigned __int128;

// Larger of the one that comes first: by value, NaN being the largest, then by place.
constexpr uint64_t rank(float x, int64_t place, bool largest) {
  const uint32_t bits = std::bit_cast<uint32_t>(x == 0 ? 0.0f : x);  // of both zeros
  const uint32_t above = bits >> 31 ? ~bits : bits | 0x80000000u;
  const uint32_t key = x != x ? 0xffffffffu : above;
  return uint64_t{largest ? key : ~key} << 32 | static_cast<uint32_t>(~place);
}
constexpr Wide wide_rank(uint64_t key, int64_t place, bool largest) {
  return Wide{largest ? key : ~key} << 32 | static_cast<uint32_t>(~place);
}
constexpr Wide rank(double x, int64_t place, bool largest) {
  const auto bits = std::bit_cast<uint64_t>(x == 0 ? 0.0 : x);
  const uint64_t above = bits >> 63 ? ~bits : bits | uint64_t{1} << 63;
  return wide_rank(x != x ? ~uint64_t{0} : above, place, largest);
}
constexpr Wide rank(int64_t x, int64_t place, bool largest) {
  return wide_rank(static_cast<uint64_t>(x) ^ uint64_t{1} << 63, place, largest);
}
template <class Rank>
constexpr int64_t place(Rank rank) {
  return static_cast<uint32_t>(~static_cast<uint32_t>(rank));
}

}  // namespace plumb::order
