// What an error says.
#pragma once

#include <exception>
#include <string>

#include "kernels/core/error.h"

namespace plumb {

// The text of the E that `run` throws; "nothing was thrown", or another exception's text with its
// kind before it, where it does not.
template <class E = BadInput, class Run>
std::string error_text(Run run) {
  try {
    run();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  return "nothing was thrown";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace plumb
