// A number that tells bytes from others, to see whether memory has been written to.
#pragma once

#include <cstdint>

namespace plumb {

// What the 64-bit word at a position adds to it.
constexpr uint64_t checksum_term(uint64_t word, uint64_t position) {
  const uint64_t mixed = (word ^ (position * 0x9e3779b97f4a7c15u)) * 0xbf58476d1ce4e5b9u;
  return mixed ^ (mixed >> 32);
}

// The sum over all words, the last one filled up with zeros: their order does not matter.
uint64_t checksum_of(const void* data, int64_t bytes);

}  // namespace plumb
