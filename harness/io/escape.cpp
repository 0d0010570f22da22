#include "harness/io/escape.h"

#include <algorithm>
#include <cstdint>

#include "harness/io/utf8.h"

namespace plumb::harness {
namespace {

constexpr char kDigits[] = "0123456789abcdef";

void append_hex(std::string& out, std::string_view bytes) {
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
  }
}

// Of valid UTF-8; moves `position` behind the character.
uint32_t next_code_point(std::string_view text, size_t& position) {
  const auto lead = static_cast<unsigned char>(text[position++]);
  const int following = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0;
  uint32_t code = following == 0 ? lead : lead & (0x3fu >> following);
  for (int i = 0; i < following; ++i) {
    code = (code << 6) | (static_cast<unsigned char>(text[position++]) & 0x3fu);
  }
  return code;
}

// Controls, what reorders or hides text, line and paragraph separators, and what XML 1.0 forbids.
bool is_harmful(uint32_t code) {
  constexpr struct {
    uint32_t first, last;
  } kRanges[] = {{0x00, 0x1f},     {0x7f, 0x9f},     {0xad, 0xad},     {0x61c, 0x61c},
                 {0x180e, 0x180e}, {0x200b, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f},
                 {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xfffe, 0xffff}, {0xe0000, 0xe0fff}};
  return std::any_of(std::begin(kRanges), std::end(kRanges),
                     [&](const auto& range) { return range.first <= code && code <= range.last; });
}

// Harmful characters but for those in `kept` (ASCII) become \xNN.
std::string disarmed(std::string_view text, std::string_view kept) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::string_view valid = text.substr(0, utf8_valid_prefix(text));
    for (size_t position = 0; position < valid.size();) {
      const size_t start = position;
      const uint32_t code = next_code_point(valid, position);
      const std::string_view bytes = valid.substr(start, position - start);
      if (is_harmful(code) && kept.find(bytes) == std::string_view::npos) {
        append_hex(out, bytes);
      } else {
        out += bytes;
      }
    }
    text.remove_prefix(valid.size());
    if (!text.empty()) {
      append_hex(out, text.substr(0, 1));
      text.remove_prefix(1);
    }
  }
  return out;
}

bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

void append_reference(std::string& out, char c) {
  out += "&#" + std::to_string(static_cast<int>(c)) + ";";
}

}  // namespace

std::string terminal_text(std::string_view text) { return disarmed(text, ""); }

std::string xml_text(std::string_view text) {
  constexpr std::string_view kActive = "&<>\"'\n\t";
  std::string out;
  for (const char c : disarmed(text, "\n\t")) {
    if (kActive.find(c) != std::string_view::npos) {
      append_reference(out, c);
    } else {
      out += c;
    }
  }
  return out;
}

std::string markdown_text(std::string_view text) {
  constexpr std::string_view kActive = "&<>|`*[]\\~$@";
  const std::string safe = terminal_text(text);
  std::string out;
  for (size_t i = 0; i < safe.size(); ++i) {
    // An underscore between letters and digits has no meaning.
    const bool emphasis = safe[i] == '_' && !(i > 0 && i + 1 < safe.size() &&
                                              is_word(safe[i - 1]) && is_word(safe[i + 1]));
    if (emphasis || kActive.find(safe[i]) != std::string_view::npos) {
      append_reference(out, safe[i]);
    } else {
      out += safe[i];
    }
  }
  return out;
}

std::string markdown_code(std::string_view lines) {
  const std::string safe = disarmed(lines, "\n");
  size_t longest = 2, run = 0;
  for (const char c : safe) {
    run = c == '`' ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  const std::string fence(longest + 1, '`');
  return fence + "text\n" + safe + (safe.ends_with('\n') ? "" : "\n") + fence + "\n";
}

std::string shell_word(const std::string& word) {
  const bool plain =
      !word.empty() &&
      word.find_first_not_of(
          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,+@%") ==
          std::string::npos;
  if (plain) return word;
  std::string out = "'";
  for (char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace plumb::harness
