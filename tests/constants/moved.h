// Constants of the judge that a copy of its sources reads from here (tests/constants/sources.py):
// one of them may be moved while the program runs, and which are read is known.
#pragma once

namespace plumb::moved {

inline constexpr int kMost = 1024;
inline int which = -1;
inline double factor = 1;
inline bool used[kMost] = {};

template <class T>
T read(int constant, T value) {
  used[constant] = true;
  return constant == which ? static_cast<T>(static_cast<double>(value) * factor) : value;
}

// The constant of that place in the list is so many times what it is; -1: none is moved.
inline void move(int constant, double times) {
  which = constant;
  factor = times;
}

}  // namespace plumb::moved
