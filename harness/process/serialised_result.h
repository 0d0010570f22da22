// What a function returned or threw, as one message to another process.
#pragma once

#include <functional>
#include <string>

namespace plumb::harness {

std::string serialised(const std::function<std::string()>& make);
// What `make` returned; throws what it threw: the same kind of Error with the same text.
std::string deserialised(const std::string& message);

}  // namespace plumb::harness
