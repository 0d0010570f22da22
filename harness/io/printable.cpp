#include "harness/io/printable.h"

namespace plumb::harness {

std::string printable(std::string_view text, size_t limit) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte > 0x7e || c == '"' || c == '\\') {
      out += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    } else {
      out += c;
    }
  }
  return out + (text.size() > limit ? "...\"" : "\"");
}

}  // namespace plumb::harness
