#include "harness/process/serialised_result.h"

#include "harness/process/process.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

enum Kind : char { returned, usage, bad_input, device, timed_out, unsupported, other };

std::string message(Kind kind, const std::string& words) { return static_cast<char>(kind) + words; }

}  // namespace

std::string serialised(const std::function<std::string()>& make) {
  try {
    return message(returned, make());
  } catch (const UsageError& error) {
    return message(usage, error.what());
  } catch (const BadInput& error) {
    return message(bad_input, error.what());
  } catch (const DeviceError& error) {
    return message(device, error.what());
  } catch (const TimedOut& error) {
    return message(timed_out, error.what());
  } catch (const Unsupported& error) {
    return message(unsupported, error.what());
  } catch (const std::exception& error) {
    return message(other, error.what());
  }
}

std::string deserialised(const std::string& message) {
  const std::string words = message.substr(message.empty() ? 0 : 1);
  switch (message.empty() ? other : static_cast<Kind>(message[0])) {
    case returned: return words;
    case usage: throw UsageError(words);
    case bad_input: throw BadInput(words);
    case device: throw DeviceError(words);
    case timed_out: throw TimedOut(words);
    case unsupported: throw Unsupported(words);
    default: throw Error(words);
  }
}

}  // namespace plumb::harness
