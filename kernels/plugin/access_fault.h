// Reports a plugin's access to memory that it may not touch, instead of ending the process.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace plumb {

struct AccessFault {
  enum class Verb { read, wrote, touched };

  const void* address = nullptr;  // null: misaligned for its instruction
  Verb verb = Verb::touched;      // where the processor tells
  std::string line;               // "my_norm.c:24", of the code in `file`
  bool in_other_thread = false;   // which is stopped for good, with what it held
};

// Runs `work`, which is abandoned where it, or a thread of its own, touches an address for which
// `watched` is true, or where the processor refuses an address as misaligned. Any other fault ends
// the process as without this. `file`: the library whose source lines are reported. One call at a
// time.
std::optional<AccessFault> run_watched(const std::string& file,
                                       const std::function<bool(const void*)>& watched,
                                       const std::function<void()>& work);

}  // namespace plumb
