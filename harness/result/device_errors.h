// What a device could not do, as a status.
#pragma once

#include <functional>
#include <string>

#include "harness/judge/status.h"

namespace plumb::harness {

// Calls `work`; Unsupported, DeviceError and exhausted memory become status and reason, the rest is
// thrown on. What does not throw leaves both as they are.
void settle_device_errors(Status& status, std::string& reason, const std::function<void()>& work);

}  // namespace plumb::harness
