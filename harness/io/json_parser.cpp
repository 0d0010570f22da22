// JsonDocument::parse: nlohmann's parser, held to the rules of json.h.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "harness/io/json.h"
#include "harness/io/printable.h"

namespace plumb::harness {
namespace {

bool between_tokens(char c) {
  return c == ' ' || c == '\n' || c == ',' || c == ':' || c == '\t' || c == '\r';
}
bool behind_number(char c) { return between_tokens(c) || c == ']' || c == '}'; }

}  // namespace

// Receives the values in the order of the text and appends them to the document. The library does
// not report a value's offset, so at_ follows it through the text, which is valid up to there.
class JsonParser {
 public:
  JsonParser(JsonDocument& document, const JsonLimits& limits)
      : document_(document), limits_(limits), text_(document.text_) {}

  void parse();

  // What the library calls. Errors are thrown, so all return true.
  bool null() {
    add(Kind::null);
    return end_of_value(at_ + 4);
  }
  bool boolean(bool flag) {
    add(Kind::boolean).flag = flag;
    return end_of_value(at_ + (flag ? 4 : 5));
  }
  bool number_integer(int64_t value);
  bool number_unsigned(uint64_t value);
  bool number_float(double value, const std::string& written);
  bool string(const std::string& value) { return end_of_value(add_string(value)); }
  bool key(const std::string& name);
  bool binary(const nlohmann::json::binary_t&) { return false; }
  bool start_array(size_t) { return open(Kind::array); }
  bool start_object(size_t) { return open(Kind::object); }
  bool end_array() { return close(); }
  bool end_object();
  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::json::exception& error);

 private:
  using Kind = JsonValue::Kind;
  using Node = JsonDocument::Node;
  struct Open {
    uint32_t container;
    uint32_t key = 0;  // of the member being read
  };

  [[noreturn]] void fail(size_t offset, const std::string& message) const;
  Node& add(Kind kind);
  bool open(Kind kind);
  bool close();
  bool end_of_value(size_t at);
  bool end_of_number();
  size_t add_string(const std::string& value);

  JsonDocument& document_;
  const JsonLimits& limits_;
  std::string_view text_;
  size_t at_ = 0;
  std::vector<Open> open_;
};

void JsonParser::fail(size_t offset, const std::string& message) const {
  std::string path;
  for (const Open& level : open_) {
    const Node& node = document_.nodes_[level.container];
    if (node.kind == Kind::array) {
      JsonDocument::append_index(path, node.size);
    } else if (level.key != 0) {
      JsonDocument::append_member(path, document_.string_of(document_.nodes_[level.key]));
    }
  }
  throw BadInput(text(document_.name_, ": invalid JSON: ", path, path.empty() ? "" : ": ", message,
                      " (", document_.place(offset), ')'));
}

void JsonParser::parse() {
  if (static_cast<int64_t>(text_.size()) > std::min(limits_.bytes, int64_t{1} << 31)) {
    fail(0, text("the text has ", text_.size(), " bytes, more than the ", limits_.bytes,
                 " that are allowed"));
  }
  // The library skips the one and takes the other for the text's end.
  if (text_.starts_with("\xef\xbb\xbf")) fail(0, "the text starts with a byte order mark");
  if (const size_t nul = text_.find('\0'); nul < text_.size())
    fail(nul, "unexpected NUL character");
  if (text_.empty()) fail(0, "unexpected end of input");  // newer versions of the library say else
  // Recordings have a value in about 10 bytes of text.
  document_.nodes_.reserve(std::min(text_.size() / 9 + 16, static_cast<size_t>(limits_.values)));
  nlohmann::json::sax_parse(text_.begin(), text_.end(), this);
}

bool JsonParser::parse_error(size_t position, const std::string& token,
                             const nlohmann::json::exception& error) {
  constexpr int kNumberOverflow = 406;
  if (error.id == kNumberOverflow) {
    fail(position - token.size(),
         text("the number ", printable(token, 40), " is outside the range of a double"));
  }
  // "[name] parse error at line 1, column 4: what; last read: 'token'; expected ..."
  std::string what = error.what();
  what.erase(0, what.find(": ") + 2);
  what.erase(std::min(what.find("; last read"), what.size()));
  if (token.ends_with('N') || token.ends_with('I')) {
    what += " (what is not finite is written \"nan\", \"inf\" or \"-inf\")";
  }
  constexpr size_t kShown = 40;
  const size_t cut = token.size() - std::min(token.size(), kShown);
  fail(std::max<size_t>(position, 1) - 1,
       text(what, ", read ", printable(std::string_view(token).substr(cut))));
}

JsonParser::Node& JsonParser::add(Kind kind) {
  while (between_tokens(text_[at_])) ++at_;
  const auto index = static_cast<uint32_t>(document_.nodes_.size());
  if (index >= limits_.values) {
    fail(at_, text("there are more than the ", limits_.values, " values that are allowed"));
  }
  document_.nodes_.push_back(
      {kind, false, static_cast<uint32_t>(at_), index + 1, 0, {.integer = 0}});
  return document_.nodes_.back();
}

bool JsonParser::end_of_value(size_t at) {
  at_ = at;
  if (!open_.empty()) ++document_.nodes_[open_.back().container].size;
  return true;
}

bool JsonParser::end_of_number() {
  while (at_ < text_.size() && !behind_number(text_[at_])) ++at_;
  return end_of_value(at_);
}

bool JsonParser::open(Kind kind) {
  add(kind);
  if (static_cast<int>(open_.size()) >= limits_.depth) {
    fail(at_, text("values are nested deeper than ", limits_.depth));
  }
  open_.push_back({static_cast<uint32_t>(document_.nodes_.size()) - 1});
  ++at_;
  return true;
}

bool JsonParser::close() {
  document_.nodes_[open_.back().container].end = static_cast<uint32_t>(document_.nodes_.size());
  open_.pop_back();
  while (text_[at_] != ']' && text_[at_] != '}') ++at_;
  return end_of_value(at_ + 1);
}

bool JsonParser::number_integer(int64_t value) {
  Node& node = add(Kind::integer);
  node.integer = value;
  if (value == 0) {  // -0
    node.kind = Kind::number;
    node.number = -0.0;
  }
  return end_of_number();
}

bool JsonParser::number_unsigned(uint64_t value) {
  Node& node = add(Kind::integer);
  node.flag = value > INT64_MAX;
  node.unsigned_integer = value;
  return end_of_number();
}

// Also called for integers beyond 64 bits.
bool JsonParser::number_float(double value, const std::string& written) {
  add(Kind::number).number = value;
  if (written.find('.') == std::string::npos && written.find_first_of("eE") == std::string::npos) {
    fail(at_, text("the integer ", printable(written, 40), " is outside the range of 64 bits"));
  }
  if (value == 0 && written.find_first_of("123456789") < written.find_first_of("eE")) {
    fail(at_, text("the number ", printable(written, 40), " is outside the range of a double"));
  }
  return end_of_number();
}

bool JsonParser::key(const std::string& name) {
  const auto index = static_cast<uint32_t>(document_.nodes_.size());
  at_ = add_string(name);
  open_.back().key = index;
  return true;
}

// Returns the offset after it.
size_t JsonParser::add_string(const std::string& value) {
  Node& node = add(Kind::string);
  if (static_cast<int64_t>(value.size()) > limits_.string) {
    fail(at_ + 1, text("a string has ", value.size(), " bytes, more than the ", limits_.string,
                       " that are allowed"));
  }
  node.size = static_cast<uint32_t>(value.size());
  node.begin = at_ + 1;
  size_t end = at_ + 1 + value.size();
  // As long as it is written only where nothing is escaped.
  node.flag = text_[end] != '"' || text_.substr(at_ + 1, value.size()) != value;
  if (node.flag) {
    if (value.find('\0') != std::string::npos) fail(at_ + 1, "a string holds a NUL character");
    node.begin = document_.unescaped_.size();
    document_.unescaped_ += value;
    for (end = at_ + 1; text_[end] != '"'; ++end) end += text_[end] == '\\';
  }
  return end + 1;
}

bool JsonParser::end_object() {
  open_.back().key = 0;  // an error is now the object's
  const uint32_t object = open_.back().container;
  const std::vector<Node>& nodes = document_.nodes_;
  std::vector<std::pair<std::string_view, uint32_t>> keys;
  keys.reserve(nodes[object].size);
  for (uint32_t key = object + 1; key < nodes.size(); key = nodes[key + 1].end) {
    keys.emplace_back(document_.string_of(nodes[key]), nodes[key].offset);
  }
  // Same keys side by side. Most differ in size, which is cheap to compare.
  std::sort(keys.begin(), keys.end(), [](const auto& a, const auto& b) {
    return a.first.size() != b.first.size() ? a.first.size() < b.first.size() : a < b;
  });
  const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  const auto found = std::adjacent_find(keys.begin(), keys.end(), same);
  if (found != keys.end()) {
    fail(found[1].second, text("the key ", printable(found->first), " appears twice, first at ",
                               document_.place(found->second)));
  }
  return close();
}

std::shared_ptr<const JsonDocument> JsonDocument::parse(std::string name, std::string text,
                                                        const JsonLimits& limits) {
  std::shared_ptr<JsonDocument> document(new JsonDocument(std::move(name), std::move(text)));
  JsonParser(*document, limits).parse();
  return document;
}

}  // namespace plumb::harness
