#include "kernels/core/checksum.h"

#include <cstring>

namespace plumb {

uint64_t checksum_of(const void* data, int64_t bytes) {
  const auto* from = static_cast<const char*>(data);
  const int64_t words = bytes / 8;
  uint64_t out = 0;
  for (int64_t i = 0; i < words; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, from + 8 * i, 8);
    out += checksum_term(word, static_cast<uint64_t>(i));
  }
  if (bytes % 8 == 0) return out;
  uint64_t last = 0;
  std::memcpy(&last, from + 8 * words, static_cast<size_t>(bytes % 8));
  return out + checksum_term(last, static_cast<uint64_t>(words));
}

}  // namespace plumb
