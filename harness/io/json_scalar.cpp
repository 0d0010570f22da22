// Literals, numbers and strings.
#include <charconv>
#include <cmath>

#include "harness/io/json_parser.h"
#include "harness/io/printable.h"
#include "harness/io/utf8.h"

namespace plumb {

void JsonParser::literal(std::string_view word, Kind kind, bool flag) {
  if (text_.substr(at_, word.size()) != word) unexpected("a value");
  document_.nodes_[add(kind)].flag = flag;
  at_ += word.size();
}

void JsonParser::digits() {
  if (peek() < '0' || peek() > '9') unexpected("a digit");
  while (peek() >= '0' && peek() <= '9') ++at_;
}

void JsonParser::number() {
  JsonDocument::Node& node = document_.nodes_[add(Kind::number)];
  const size_t begin = at_;
  if (peek() == '-') ++at_;
  if (peek() == '0') {
    ++at_;
  } else {
    digits();
  }
  bool whole = true;
  if (peek() == '.') {
    whole = false;
    ++at_;
    digits();
  }
  if (peek() == 'e' || peek() == 'E') {
    whole = false;
    ++at_;
    if (peek() == '+' || peek() == '-') ++at_;
    digits();
  }
  const char* first = text_.data() + begin;
  const char* last = text_.data() + at_;
  const std::string_view written(first, static_cast<size_t>(last - first));
  if (whole && written != "-0") {
    node.kind = Kind::integer;
    if (std::from_chars(first, last, node.integer).ec == std::errc()) return;
    node.flag = true;
    if (std::from_chars(first, last, node.unsigned_integer).ec == std::errc()) return;
    fail(begin, text("the integer ", printable(written, 40), " is outside the range of 64 bits"));
  }
  if (std::from_chars(first, last, node.number).ec != std::errc() || !std::isfinite(node.number)) {
    fail(begin, text("the number ", printable(written, 40), " is outside the range of a double"));
  }
}

void JsonParser::string() {
  const uint32_t node = add(Kind::string);
  const size_t begin = ++at_;
  while (at_ < text_.size()) {
    const auto c = static_cast<unsigned char>(text_[at_]);
    if (c < 0x20 || c == '"' || c == '\\') break;
    ++at_;
  }
  if (peek() == '\\') return unescape(begin, node);
  if (peek() != '"') unexpected("the end of a string (control characters are written \\u00NN)");
  const size_t size = at_ - begin;
  if (static_cast<int64_t>(size) > limits_.string) {
    fail(begin, text("a string has ", size, " bytes, more than the ", limits_.string,
                     " that are allowed"));
  }
  document_.nodes_[node].begin = begin;
  document_.nodes_[node].size = static_cast<uint32_t>(size);
  ++at_;
}

// The string that began at `begin`; everything before at_ is plain, at at_ is the first escape.
void JsonParser::unescape(size_t begin, uint32_t node) {
  std::string& out = document_.unescaped_;
  const size_t start = out.size();
  size_t plain = begin;  // what follows is not yet copied
  for (;;) {
    out += text_.substr(plain, at_ - plain);
    if (static_cast<int64_t>(out.size() - start) > limits_.string) {
      fail(begin, text("a string has more than the ", limits_.string, " bytes that are allowed"));
    }
    if (peek() != '\\') break;
    ++at_;
    escape(out);
    plain = at_;
    while (at_ < text_.size() && static_cast<unsigned char>(text_[at_]) >= 0x20 &&
           text_[at_] != '"' && text_[at_] != '\\') {
      ++at_;
    }
  }
  if (peek() != '"') unexpected("the end of a string (control characters are written \\u00NN)");
  ++at_;
  document_.nodes_[node].flag = true;
  document_.nodes_[node].begin = start;
  document_.nodes_[node].size = static_cast<uint32_t>(out.size() - start);
}

void JsonParser::escape(std::string& out) {
  constexpr std::string_view kLetters = "\"\\/bfnrt";
  constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
  const size_t letter = at_ < text_.size() ? kLetters.find(text_[at_]) : std::string_view::npos;
  if (letter != std::string_view::npos) {
    out += kMeanings[letter];
    ++at_;
    return;
  }
  if (peek() != 'u') unexpected("one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uNNNN");
  const size_t begin = at_ - 1;
  uint32_t code_point = four_digits();
  if (code_point == 0) fail(begin, "a string holds a NUL character");
  if (code_point >= 0xdc00 && code_point <= 0xdfff) fail(begin, "a low surrogate comes first");
  if (code_point >= 0xd800 && code_point <= 0xdbff) {
    const bool pair = text_.substr(at_, 2) == "\\u";
    if (pair) ++at_;
    const uint32_t low = pair ? four_digits() : 0;
    if (low < 0xdc00 || low > 0xdfff) fail(begin, "a high surrogate stands alone");
    code_point = 0x10000 + ((code_point - 0xd800) << 10) + (low - 0xdc00);
  }
  append_utf8(out, code_point);
}

// The number behind a "u", on which at_ stands.
uint32_t JsonParser::four_digits() {
  ++at_;
  uint32_t number = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    const char c = peek();
    const bool decimal = c >= '0' && c <= '9';
    const bool letter = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    if (!decimal && !letter) unexpected("four hexadecimal digits");
    number = number * 16 + static_cast<uint32_t>(decimal ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  return number;
}

}  // namespace plumb
