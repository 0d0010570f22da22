// What the letters of a row are in its samples (samples.cpp).
#pragma once

#include <cstdint>
#include <span>

namespace plumb {

// What a letter may be. Products are short: an emulated device makes them, too.
inline std::span<const int64_t> extents_of(char letter) {
  static constexpr int64_t kBatches[] = {1, 2, 3}, kGroups[] = {1, 2}, kOuter[] = {2, 3, 5},
                           kChannels[] = {1, 3, 8, 9, 31, 64, 65, 257, 1031, 2304},
                           kRows[] = {1, 2, 3, 8, 9, 17, 33, 65},
                           kInner[] = {1, 3, 7, 8, 16, 33, 64, 65, 129},
                           kWidths[] = {2, 6, 8, 16, 64, 80, 128}, kTaps[] = {1, 2, 3, 4},
                           kStates[] = {1, 5, 16, 64}, kFrequencies[] = {1, 3, 32},
                           kVocabulary[] = {1, 11, 300};
  switch (letter) {
    case 'B': return kBatches;
    case 'G': return kGroups;
    case 'C': return kChannels;
    case 'D':
    case 'E':
    case 'R': return kWidths;
    case 'F': return kFrequencies;
    case 'P': return kStates;
    case 'V': return kVocabulary;
    case 'W': return kTaps;
    case 'M':
    case 'T': return kRows;
    case '*': return kOuter;
    default: return kInner;
  }
}

}  // namespace plumb
