// Text from outside made safe to print.
#pragma once

#include <string>
#include <string_view>

namespace plumb::harness {

// `text` in double quotes: control characters, quotes, backslashes and bytes above 0x7e become
// \xNN, and what is beyond `limit` characters is cut ("..."). A hostile file can so neither write
// escape sequences to a terminal nor fill a log.
std::string printable(std::string_view text, size_t limit = 80);

}  // namespace plumb::harness
