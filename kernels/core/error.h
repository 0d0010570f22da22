// The errors that keep a run from happening. A numerical mismatch is data, never one of these.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace plumb {

// Base of every error that the libraries throw. The text starts with the op or file in brackets and
// names both numbers that disagree.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller asked for something that makes no sense (a wrong flag, shapes that do not fit).
class UsageError : public Error {
 public:
  using Error::Error;
};

// A file is not what it claims to be.
class BadInput : public Error {
 public:
  using Error::Error;
};

// A device could not be opened, or failed while it worked.
class DeviceError : public Error {
 public:
  using Error::Error;
};

// A kernel touched memory that is not its operands'.
class OutOfBounds : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

// Correct input that this device or block does not implement.
class Unsupported : public Error {
 public:
  using Error::Error;
};

// The concatenation of everything that can be written to a stream.
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Throws E("[where] parts...") unless the condition holds.
template <class E = UsageError, class... Parts>
void require(bool condition, const char* where, const Parts&... parts) {
  if (!condition) throw E(text('[', where, "] ", parts...));
}

}  // namespace plumb
