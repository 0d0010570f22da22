// JSON (RFC 8259), strict: for files that may be hostile.
//
// Rejected beyond what the RFC rejects: a byte order mark, a key that appears twice, a number
// beyond double's range, an integer literal beyond 64 bits, a NUL character (also as \u0000), a
// lone surrogate, invalid UTF-8, nesting beyond a limit. Integer literals are kept exactly, never
// through double; "-0" is no integer but the number -0.0.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/core/error.h"

namespace plumb::harness {

struct JsonLimits {
  int64_t bytes = int64_t{64} << 20;  // of the text; never more than 2^31
  int64_t values = 2'000'000;         // values and keys; each takes 24 bytes
  int64_t string = int64_t{1} << 20;  // bytes of one string
  int depth = 64;
};

class JsonDocument;
struct JsonMember;

// Over an array's values or an object's members, in the text's order.
template <class T>
struct JsonIterator {
  const JsonDocument* document;
  uint32_t index;  // of the node it is at: a value, or a member's key
  T operator*() const;
  JsonIterator& operator++();
  bool operator!=(const JsonIterator& other) const { return index != other.index; }
};
template <class T>
struct JsonRange {
  JsonIterator<T> first, behind;
  JsonIterator<T> begin() const { return first; }
  JsonIterator<T> end() const { return behind; }
};

// A value of a document: a cheap handle, valid as long as the document lives. Getters of another
// type than the value's, and everything else that fails, throw BadInput such as
//   x/recording.json: checkpoints[3].outputs.out.axes: is a string, expected an array (line 3,
//   column 7)
class JsonValue {
 public:
  enum class Kind : uint8_t { null, boolean, integer, number, string, array, object };
  using Items = JsonRange<JsonValue>;
  using Members = JsonRange<JsonMember>;

  Kind kind() const;
  bool is_null() const { return kind() == Kind::null; }

  bool boolean() const;
  // An integer literal within [min, max]; 1.0 is none.
  int64_t integer(int64_t min = INT64_MIN, int64_t max = INT64_MAX) const;
  uint64_t unsigned_integer() const;
  // Integers too where a double holds them exactly.
  double number() const;
  // Also "inf", "-inf" and "nan": how recordings write what is not finite.
  double number_or_name() const;
  std::string_view string() const;
  int64_t size() const;  // of an array or an object

  Items items() const;      // for (JsonValue item : array.items())
  Members members() const;  // for (auto [name, value] : object.members()), in the file's order

  JsonValue at(std::string_view name) const;  // a member that must be there
  std::optional<JsonValue> find(std::string_view name) const;
  // BadInput where the object has a member that is not among these.
  void only(std::initializer_list<std::string_view> names) const;

  std::string path() const;  // checkpoints[3].outputs.out; empty for the root
  const JsonDocument& document() const { return *document_; }

  // Throws BadInput "file: path: parts... (line 3, column 7)".
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    raise(text(parts...));
  }

 private:
  friend class JsonDocument;
  template <class T>
  friend struct JsonIterator;
  JsonValue(const JsonDocument* document, uint32_t index) : document_(document), index_(index) {}
  [[noreturn]] void raise(const std::string& message) const;
  void expect(Kind kind) const;

  const JsonDocument* document_;
  uint32_t index_;  // of its node
};

struct JsonMember {
  std::string_view name;
  JsonValue value;
};

// A text and its values, as one flat list of nodes in the order of the text.
class JsonDocument {
 public:
  // `name` is the file's name, for errors. Throws BadInput with line, column and path.
  static std::shared_ptr<const JsonDocument> parse(std::string name, std::string text,
                                                   const JsonLimits& limits = {});

  JsonValue root() const { return JsonValue(this, 0); }
  const std::string& name() const { return name_; }
  const std::string& text() const { return text_; }

 private:
  friend class JsonValue;
  friend class JsonParser;
  template <class T>
  friend struct JsonIterator;

  // An array's elements follow it; an object is followed by key, value, key, value. Keys are nodes
  // of kind string.
  struct Node {
    JsonValue::Kind kind;
    bool flag;        // boolean: the value; integer: above 2^63 - 1; string: in unescaped_
    uint32_t offset;  // in text_
    uint32_t end;     // index of the first node behind this value
    uint32_t size;    // elements, members, or bytes of a string
    union {
      int64_t integer;
      uint64_t unsigned_integer;
      double number;
      uint64_t begin;  // of a string, in text_ or in unescaped_
    };
  };
  JsonDocument(std::string name, std::string text)
      : name_(std::move(name)), text_(std::move(text)) {}
  std::string_view string_of(const Node& node) const {
    return std::string_view(node.flag ? unescaped_ : text_).substr(node.begin, node.size);
  }
  std::string path_to(uint32_t index) const;
  std::string place(size_t offset) const;  // "line 3, column 7"
  static void append_member(std::string& path, std::string_view name);
  static void append_index(std::string& path, int64_t index);

  std::string name_;
  std::string text_;
  std::string unescaped_;  // strings that had escapes
  std::vector<Node> nodes_;
};

template <class T>
T JsonIterator<T>::operator*() const {
  if constexpr (std::is_same_v<T, JsonValue>) return JsonValue(document, index);
  else return {document->string_of(document->nodes_[index]), JsonValue(document, index + 1)};
}

template <class T>
JsonIterator<T>& JsonIterator<T>::operator++() {
  index = document->nodes_[index + std::is_same_v<T, JsonMember>].end;
  return *this;
}

}  // namespace plumb::harness
