// The parser behind JsonDocument::parse.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "harness/io/json.h"

namespace plumb {

// Recursive descent over the text, appending nodes to the document. Nesting is limited, so the
// stack is too.
class JsonParser {
 public:
  JsonParser(JsonDocument& document, const JsonLimits& limits)
      : document_(document), limits_(limits), text_(document.text_) {}

  void parse();

 private:
  using Kind = JsonValue::Kind;
  struct Open {
    uint32_t container;
    uint32_t key;  // of the member being read
  };

  [[noreturn]] void fail(size_t offset, const std::string& message) const;
  [[noreturn]] void unexpected(const char* expected) const;
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space();
  uint32_t add(Kind kind);
  uint32_t open(Kind kind);
  void close(uint32_t container);
  void value();
  void array();
  void object();
  void refuse_repeated_keys(uint32_t object) const;
  void literal(std::string_view word, Kind kind, bool flag);
  void number();
  void digits();
  void string();
  void unescape(size_t begin, uint32_t node);
  void escape(std::string& out);
  uint32_t four_digits();

  JsonDocument& document_;
  const JsonLimits& limits_;
  std::string_view text_;
  size_t at_ = 0;
  std::vector<Open> open_;
};

}  // namespace plumb
