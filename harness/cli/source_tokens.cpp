#include "harness/cli/source_tokens.h"

#include <algorithm>

namespace plumb::harness {
namespace {

bool is_word_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}
bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r') || c == '\\'; }

class SourceLexer {
 public:
  explicit SourceLexer(std::string_view text) : text_(text) {}

  std::vector<SourceToken> all() {
    while (at_ < text_.size()) step();
    return std::move(tokens_);
  }

 private:
  void step() {
    const char c = text_[at_];
    if (starts("//")) return skip_to("\n");
    if (starts("/*")) return at_ += 2, skip_to("*/"), void(at_ = std::min(at_ + 2, text_.size()));
    if (is_blank(c)) return void(++at_);
    if (c == '#') return directive();
    if (c == '"' || c == '\'') return literal(c);
    if (starts("R\"")) return raw_literal();
    if (is_word_character(c)) return word();
    add(SourceToken::Kind::mark, at_, at_ + 1);
  }
  bool starts(std::string_view with) const { return text_.substr(at_, with.size()) == with; }
  void skip_to(std::string_view what) { at_ = std::min(text_.find(what, at_), text_.size()); }
  void add(SourceToken::Kind kind, size_t begin, size_t end) {
    tokens_.push_back({kind, begin, end});
    at_ = end;
  }
  void word() {
    size_t end = at_;
    while (end < text_.size() && (is_word_character(text_[end]) ||
                                  (text_[end] == '\'' && is_word_character(text_[end - 1]) &&
                                   text_[at_] >= '0' && text_[at_] <= '9'))) {
      ++end;  // 1'000 is one
    }
    add(SourceToken::Kind::word, at_, end);
  }
  void literal(char quote) {
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    add(SourceToken::Kind::literal, at_, std::min(end + 1, text_.size()));
  }
  void raw_literal() {
    const size_t open = std::min(text_.find('(', at_), text_.size());
    const std::string close = ")" + std::string(text_.substr(at_ + 2, open - at_ - 2)) + "\"";
    const size_t end = text_.find(close, open);
    add(SourceToken::Kind::literal, at_,
        end == std::string_view::npos ? text_.size() : end + close.size());
  }
  // Of an include the name; what other directives say is code.
  void directive() {
    ++at_;
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
    if (!starts("include")) return;
    const size_t start = at_;
    skip_to("\n");
    const std::string_view line = text_.substr(start, at_ - start);
    const size_t open = line.find('"'), close = line.find('"', open + 1);
    if (open == std::string_view::npos || close == std::string_view::npos) return;
    tokens_.push_back({SourceToken::Kind::include, start + open + 1, start + close});
  }

  std::string_view text_;
  size_t at_ = 0;
  std::vector<SourceToken> tokens_;
};

}  // namespace

std::vector<SourceToken> source_tokens(std::string_view text) { return SourceLexer(text).all(); }

}  // namespace plumb::harness
