#include "harness/io/json.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "harness/io/printable.h"

namespace plumb::harness {
namespace {

const char* described(JsonValue::Kind kind) {
  constexpr const char* kNames[] = {"null",     "a bool",   "an integer", "a number",
                                    "a string", "an array", "an object"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace

void JsonDocument::append_member(std::string& path, std::string_view name) {
  const bool plain =
      !name.empty() && name.size() <= 80 && std::all_of(name.begin(), name.end(), [](char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
               c == '_';
      });
  if (plain) {
    if (!path.empty()) path += '.';
    path += name;
  } else {
    path += '[' + printable(name) + ']';
  }
}

void JsonDocument::append_index(std::string& path, int64_t index) {
  path += '[' + std::to_string(index) + ']';
}

std::string JsonDocument::place(size_t offset) const {
  const std::string_view before = std::string_view(text_).substr(0, offset);
  const std::string_view line = before.substr(before.rfind('\n') + 1);
  const auto starts = [](char c) { return (c & 0xc0) != 0x80; };  // a character, in UTF-8
  return plumb::text("line ", 1 + std::count(before.begin(), before.end(), '\n'), ", column ",
                     1 + std::count_if(line.begin(), line.end(), starts));
}

// Every step goes into the child whose nodes enclose the one looked for.
std::string JsonDocument::path_to(uint32_t index) const {
  std::string path;
  uint32_t at = 0;
  while (at != index) {
    const bool object = nodes_[at].kind == JsonValue::Kind::object;
    uint32_t child = at + 1;
    int64_t position = 0;
    while (nodes_[child + object].end <= index) {
      child = nodes_[child + object].end;
      ++position;
    }
    if (object) {
      append_member(path, string_of(nodes_[child]));
    } else {
      append_index(path, position);
    }
    at = child + object;
  }
  return path;
}

JsonValue::Kind JsonValue::kind() const { return document_->nodes_[index_].kind; }
std::string JsonValue::path() const { return document_->path_to(index_); }

void JsonValue::raise(const std::string& message) const {
  const std::string at = path();
  throw BadInput(text(document_->name(), ": ", at, at.empty() ? "" : ": ", message, " (",
                      document_->place(document_->nodes_[index_].offset), ')'));
}

void JsonValue::expect(Kind kind) const {
  if (this->kind() != kind) fail("is ", described(this->kind()), ", expected ", described(kind));
}

bool JsonValue::boolean() const {
  expect(Kind::boolean);
  return document_->nodes_[index_].flag;
}

int64_t JsonValue::integer(int64_t min, int64_t max) const {
  expect(Kind::integer);
  const JsonDocument::Node& node = document_->nodes_[index_];
  if (node.flag) fail("is ", node.unsigned_integer, ", expected at most ", max);
  if (node.integer < min) fail("is ", node.integer, ", expected at least ", min);
  if (node.integer > max) fail("is ", node.integer, ", expected at most ", max);
  return node.integer;
}

uint64_t JsonValue::unsigned_integer() const {
  expect(Kind::integer);
  const JsonDocument::Node& node = document_->nodes_[index_];
  if (!node.flag && node.integer < 0) fail("is ", node.integer, ", expected at least 0");
  return node.unsigned_integer;
}

double JsonValue::number() const {
  const JsonDocument::Node& node = document_->nodes_[index_];
  if (node.kind != Kind::integer) {
    expect(Kind::number);
    return node.number;
  }
  // Exact when the significant bits fit: at most 53 between the highest and the lowest that is set.
  const uint64_t magnitude =
      node.flag || node.integer >= 0 ? node.unsigned_integer : uint64_t{0} - node.unsigned_integer;
  const int bits =
      magnitude == 0 ? 0 : 64 - std::countl_zero(magnitude) - std::countr_zero(magnitude);
  if (bits > 53) {
    fail("is ", node.flag || node.integer >= 0 ? "" : "-", magnitude,
         ", which a double cannot hold exactly");
  }
  return node.flag ? static_cast<double>(node.unsigned_integer) : static_cast<double>(node.integer);
}

double JsonValue::number_or_name() const {
  if (kind() != Kind::string) return number();
  const std::string_view name = string();
  if (name == "inf") return std::numeric_limits<double>::infinity();
  if (name == "-inf") return -std::numeric_limits<double>::infinity();
  if (name == "nan") return std::numeric_limits<double>::quiet_NaN();
  fail("is ", printable(name), ", expected a number or one of \"inf\" \"-inf\" \"nan\"");
}

std::string_view JsonValue::string() const {
  expect(Kind::string);
  return document_->string_of(document_->nodes_[index_]);
}

int64_t JsonValue::size() const {
  if (kind() != Kind::object) expect(Kind::array);
  return document_->nodes_[index_].size;
}

JsonValue::Items JsonValue::items() const {
  expect(Kind::array);
  return {{document_, index_ + 1}, {document_, document_->nodes_[index_].end}};
}

JsonValue::Members JsonValue::members() const {
  expect(Kind::object);
  return {{document_, index_ + 1}, {document_, document_->nodes_[index_].end}};
}

std::optional<JsonValue> JsonValue::find(std::string_view name) const {
  for (const JsonMember member : members()) {
    if (member.name == name) return member.value;
  }
  return std::nullopt;
}

JsonValue JsonValue::at(std::string_view name) const {
  const std::optional<JsonValue> found = find(name);
  if (!found) fail("lacks the field \"", name, '"');
  return *found;
}

void JsonValue::only(std::initializer_list<std::string_view> names) const {
  for (const JsonMember member : members()) {
    if (std::find(names.begin(), names.end(), member.name) != names.end()) continue;
    std::string known;
    for (const std::string_view name : names) known.append(" ").append(name);
    member.value.fail("is an unknown field; known are", known);
  }
}

}  // namespace plumb::harness
