// The JSON reader against the library's own tree, on valid, damaged and random texts: nothing is
// lost or misplaced on the way into the document, and only the stricter rules refuse more.
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "harness/io/json.h"
#include "tests/catch.h"

namespace plumb::harness {
namespace {

using Reference = nlohmann::ordered_json;
using Kind = JsonValue::Kind;

bool same(double a, double b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

bool same(JsonValue value, const Reference& reference) {
  switch (value.kind()) {
    case Kind::null: return reference.is_null();
    case Kind::boolean: return reference.is_boolean() && value.boolean() == reference.get<bool>();
    case Kind::integer:
      if (reference.is_number_unsigned()) {
        return value.unsigned_integer() == reference.get<uint64_t>();
      }
      return reference.is_number_integer() && value.integer() == reference.get<int64_t>();
    case Kind::number:
      if (reference.is_number_integer()) return same(value.number(), -0.0) && reference == 0;
      return reference.is_number_float() && same(value.number(), reference.get<double>());
    case Kind::string:
      return reference.is_string() && value.string() == reference.get_ref<const std::string&>();
    case Kind::array: {
      if (!reference.is_array() || value.size() != static_cast<int64_t>(reference.size())) {
        return false;
      }
      auto other = reference.begin();
      for (const JsonValue item : value.items()) {
        if (!same(item, *other++)) return false;
      }
      return true;
    }
    case Kind::object: {
      if (!reference.is_object() || value.size() != static_cast<int64_t>(reference.size())) {
        return false;
      }
      auto other = reference.begin();
      for (const auto& [name, item] : value.members()) {
        if (name != other.key() || !same(item, other.value())) return false;
        ++other;
      }
      return true;
    }
  }
  return false;
}

// Where this reader is stricter than RFC 8259 or than the reference.
bool is_stricter_rule(const std::string& error) {
  for (const char* rule :
       {"byte order mark", "appears twice", "outside the range", "NUL", "nested deeper"}) {
    if (error.find(rule) != std::string::npos) return true;
  }
  return false;
}

// "" where both agree.
std::string disagreement(const std::string& text) {
  const Reference reference = Reference::parse(text, nullptr, false);
  try {
    const auto document = JsonDocument::parse("f", text);
    if (reference.is_discarded()) return "only the reference refuses " + text;
    return same(document->root(), reference) ? "" : "values differ: " + text;
  } catch (const BadInput& error) {
    if (reference.is_discarded() || is_stricter_rule(error.what())) return "";
    return text + ": only we refuse: " + error.what();
  }
}

const char* const kSeeds[] = {
    R"({"a":[1,-2,3.25,1e-7,0.1,5e-324,1.7976931348623157e308],"b":{"c":"x\n\u00e9\ud83d\ude00"}})",
    R"([true,false,null,"",[],{},[[[1]]],-0,-0.0,0e5,18446744073709551615,-9223372036854775808])",
    R"( {"k" :"\"\\\/\b\f\r\t", "é":"€😀", "n":{"n":{"n":[0.3333333333333333,2.2250738585072014e-308]}}} )",
};

TEST_CASE("both JSON readers read the same from valid texts") {
  for (const char* seed : kSeeds) CHECK(disagreement(seed) == "");
}

TEST_CASE("both JSON readers agree on damaged texts") {
  constexpr std::string_view kBytes = "{}[]\",:\\u0189aeE+-. \ndntf\x01\x80\xc3\xff";
  std::mt19937_64 random(1);
  for (int round = 0; round < 6000; ++round) {
    std::string text = kSeeds[random() % std::size(kSeeds)];
    for (uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
      const size_t at = random() % text.size();
      const char byte = kBytes[random() % kBytes.size()];
      const uint64_t kind = random() % 4;
      if (kind == 0) text.erase(at, 1 + random() % 3);
      if (kind == 1) text.insert(at, 1, byte);
      if (kind == 2) text[at] = byte;
      if (kind == 3) text.insert(at, text.substr(random() % text.size(), random() % 8));
      if (text.empty()) text = "0";
    }
    const std::string found = disagreement(text);
    if (!found.empty()) FAIL_CHECK(found);
  }
  SUCCEED();
}

TEST_CASE("both JSON readers read the same doubles") {
  std::mt19937_64 random(2);
  for (int round = 0; round < 3000; ++round) {
    double x = 0;
    const uint64_t bits = random();
    std::memcpy(&x, &bits, sizeof(x));
    if (!(x - x == 0)) continue;
    char digits[64];
    std::snprintf(digits, sizeof(digits), round % 2 ? "[%.17g]" : "[%.9e]", x);
    const std::string found = disagreement(digits);
    if (!found.empty()) FAIL_CHECK(found);
  }
  SUCCEED();
}

}  // namespace
}  // namespace plumb::harness
