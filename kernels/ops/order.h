// The order of top_k as whole numbers, the largest first: read by every device.
#pragma once

#include <bit>
#include <cstdint>

namespace plumb::order {

// Larger of the one that comes first: by value, NaN being the largest, then by place.
constexpr uint64_t rank(float x, int64_t place, bool largest) {
  const uint32_t bits = std::bit_cast<uint32_t>(x == 0 ? 0.0f : x);  // of both zeros
  const uint32_t above = bits >> 31 ? ~bits : bits | 0x80000000u;
  const uint32_t key = x != x ? 0xffffffffu : above;
  return uint64_t{largest ? key : ~key} << 32 | static_cast<uint32_t>(~place);
}
constexpr int64_t place(uint64_t rank) {
  return static_cast<uint32_t>(~static_cast<uint32_t>(rank));
}

}  // namespace plumb::order
