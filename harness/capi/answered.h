// How the functions of the library end: with a code, and words that the caller frees.
#pragma once

#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#include "harness/judge/status.h"
#include "kernels/core/error.h"

namespace plumb::harness {

inline constexpr int kExitInternal = 7;

inline char* copy_of(const std::string& words) noexcept {
  auto* out = static_cast<char*>(std::malloc(words.size() + 1));
  if (out) std::memcpy(out, words.c_str(), words.size() + 1);
  return out;
}

// The code that says how `answer` went; its words, or why there are none, in *text.
template <class Answer>
int answered(char** text, const Answer& answer) {
  if (!text) return kExitUsage;
  *text = nullptr;
  const auto failed = [&](int code, const std::string& why) {
    *text = copy_of(why);
    return code;
  };
  try {
    *text = copy_of(answer());
    return *text ? 0 : kExitInternal;
  } catch (const BadInput& error) {
    return failed(exit_code(Status::bad_input), error.what());
  } catch (const UsageError& error) {
    return failed(kExitUsage, error.what());
  } catch (const std::exception& error) {
    return failed(kExitInternal, error.what());
  } catch (...) {
    return failed(kExitInternal, "an unknown error");
  }
}

}  // namespace plumb::harness
