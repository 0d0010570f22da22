#include "harness/io/json_parser.h"

#include <algorithm>

#include "harness/io/json_path.h"
#include "harness/io/printable.h"
#include "harness/io/utf8.h"

namespace plumb {

void JsonParser::fail(size_t offset, const std::string& message) const {
  std::string path;
  for (const Open& level : open_) {
    const JsonDocument::Node& node = document_.nodes_[level.container];
    if (node.kind == Kind::array) {
      append_json_index(path, node.size);
    } else if (level.key != 0) {
      append_json_member(path, document_.string_of(document_.nodes_[level.key]));
    }
  }
  throw BadInput(text(document_.name_, ": invalid JSON: ", path, path.empty() ? "" : ": ", message,
                      " (byte ", offset, ')'));
}

void JsonParser::unexpected(const char* expected) const {
  if (at_ >= text_.size()) fail(at_, text("the text ends, expected ", expected));
  fail(at_, text("unexpected ", printable(text_.substr(at_, 1)), ", expected ", expected));
}

void JsonParser::parse() {
  if (static_cast<int64_t>(text_.size()) > std::min(limits_.bytes, int64_t{1} << 31)) {
    fail(0, text("the text has ", text_.size(), " bytes, more than the ", limits_.bytes,
                 " that are allowed"));
  }
  if (text_.substr(0, 3) == "\xef\xbb\xbf") fail(0, "the text starts with a byte order mark");
  const size_t valid = utf8_valid_prefix(text_);
  if (valid != text_.size()) fail(valid, "the text is not valid UTF-8");
  // Recordings have a value in about 10 bytes of text.
  document_.nodes_.reserve(std::min(text_.size() / 9 + 16, static_cast<size_t>(limits_.values)));
  skip_space();
  value();
  skip_space();
  if (at_ != text_.size()) unexpected("the end of the text");
}

void JsonParser::skip_space() {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
    ++at_;
  }
}

uint32_t JsonParser::add(Kind kind) {
  const auto index = static_cast<uint32_t>(document_.nodes_.size());
  if (index >= limits_.values) {
    fail(at_, text("there are more than the ", limits_.values, " values that are allowed"));
  }
  document_.nodes_.push_back(
      {kind, false, static_cast<uint32_t>(at_), index + 1, 0, {.integer = 0}});
  return index;
}

void JsonParser::value() {
  switch (peek()) {
    case '{': return object();
    case '[': return array();
    case '"': return string();
    case 't': return literal("true", Kind::boolean, true);
    case 'f': return literal("false", Kind::boolean, false);
    case 'n': return literal("null", Kind::null, false);
    case '-':
    case '0':
    case '1':
    case '2':
    case '3':
    case '4':
    case '5':
    case '6':
    case '7':
    case '8':
    case '9': return number();
    case 'N':
    case 'I':
      return unexpected("a value (what is not finite is written \"nan\", \"inf\" or \"-inf\")");
    default: return unexpected("a value");
  }
}

// A container whose bracket is at at_, which moves to its first child.
uint32_t JsonParser::open(Kind kind) {
  if (static_cast<int>(open_.size()) >= limits_.depth) {
    fail(at_, text("values are nested deeper than ", limits_.depth));
  }
  const uint32_t self = add(kind);
  open_.push_back({self, 0});
  ++at_;
  skip_space();
  return self;
}

void JsonParser::close(uint32_t container) {
  ++at_;
  open_.pop_back();
  document_.nodes_[container].end = static_cast<uint32_t>(document_.nodes_.size());
}

void JsonParser::array() {
  const uint32_t self = open(Kind::array);
  if (peek() != ']') {
    for (;;) {
      value();
      ++document_.nodes_[self].size;
      skip_space();
      if (peek() != ',') break;
      ++at_;
      skip_space();
    }
    if (peek() != ']') unexpected("\",\" or \"]\"");
  }
  close(self);
}

void JsonParser::object() {
  const uint32_t self = open(Kind::object);
  if (peek() != '}') {
    for (;;) {
      if (peek() != '"') unexpected("a key in double quotes");
      const auto key = static_cast<uint32_t>(document_.nodes_.size());
      string();
      open_.back().key = key;
      skip_space();
      if (peek() != ':') unexpected("\":\"");
      ++at_;
      skip_space();
      value();
      ++document_.nodes_[self].size;
      skip_space();
      if (peek() != ',') break;
      ++at_;
      skip_space();
    }
    if (peek() != '}') unexpected("\",\" or \"}\"");
  }
  close(self);
  refuse_repeated_keys(self);
}

void JsonParser::refuse_repeated_keys(uint32_t object) const {
  const std::vector<JsonDocument::Node>& nodes = document_.nodes_;
  std::vector<std::pair<std::string_view, uint32_t>> keys;
  keys.reserve(nodes[object].size);
  for (uint32_t key = object + 1; key < nodes[object].end; key = nodes[key + 1].end) {
    keys.emplace_back(document_.string_of(nodes[key]), nodes[key].offset);
  }
  // Same keys side by side. Most differ in size, which is cheap to compare.
  std::sort(keys.begin(), keys.end(), [](const auto& a, const auto& b) {
    return a.first.size() != b.first.size() ? a.first.size() < b.first.size() : a < b;
  });
  const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  const auto found = std::adjacent_find(keys.begin(), keys.end(), same);
  if (found != keys.end()) {
    fail(found[1].second, text("the key ", printable(found->first),
                               " appears twice, first at byte ", found->second));
  }
}

std::shared_ptr<const JsonDocument> JsonDocument::parse(std::string name, std::string text,
                                                        const JsonLimits& limits) {
  std::shared_ptr<JsonDocument> document(new JsonDocument(std::move(name), std::move(text)));
  JsonParser(*document, limits).parse();
  return document;
}

}  // namespace plumb
