// Source positions of code addresses, for messages.
#pragma once

#include <cstdint>
#include <string>

namespace plumb {

// "sdpa.cu:120" of the instruction before a return address; the name of the function and an offset
// where the binary has no line numbers or addr2line is not installed.
std::string source_line(const void* return_address);

// The same for the lower 32 bits of a return address in one of the loaded binaries.
std::string source_line_of_low_bits(uint32_t low_bits);

}  // namespace plumb
