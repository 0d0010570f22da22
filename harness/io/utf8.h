// UTF-8 (RFC 3629).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace plumb::harness {

// The offset of the first byte that is not part of valid UTF-8 (overlong forms, surrogates and code
// points above 0x10ffff are not), or the text's size.
size_t utf8_valid_prefix(std::string_view text);

}  // namespace plumb::harness
