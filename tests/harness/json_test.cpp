#include "harness/io/json.h"

#include <cmath>
#include <limits>
#include <vector>

#include "tests/catch.h"
#include "tests/harness/error_text.h"

namespace plumb::harness {
namespace {

using namespace std::string_view_literals;
using Kind = JsonValue::Kind;

std::shared_ptr<const JsonDocument> parse(std::string_view text, const JsonLimits& limits = {}) {
  return JsonDocument::parse("f.json", std::string(text), limits);
}

std::string parse_error(std::string_view text, const JsonLimits& limits = {}) {
  return error_text([&] { parse(text, limits); });
}

TEST_CASE("every kind of value is read") {
  const auto document = parse(R"( {"n":null, "t":true,"f" : false, "i":-12, "d":1.5e-3,
      "s":"a\"\\\/\b\f\n\r\t\u00e9\u20ac\ud83d\ude00é", "a":[1,[],{}], "o":{"":[]}} )");
  const JsonValue root = document->root();
  CHECK(root.kind() == Kind::object);
  CHECK(root.size() == 8);
  CHECK(root.at("n").is_null());
  CHECK(root.at("t").boolean());
  CHECK_FALSE(root.at("f").boolean());
  CHECK(root.at("i").integer() == -12);
  CHECK(root.at("i").number() == -12);
  CHECK(root.at("d").number() == 1.5e-3);
  CHECK(root.at("s").string() == "a\"\\/\b\f\n\r\t\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xc3\xa9");
  CHECK(root.at("a").size() == 3);
  CHECK(root.at("o").at("").size() == 0);
  CHECK_FALSE(root.find("x").has_value());
  std::string names;
  for (const auto& [name, value] : root.members()) names += name;
  CHECK(names == "ntfidsao");
  std::vector<Kind> kinds;
  for (const JsonValue item : root.at("a").items()) kinds.push_back(item.kind());
  CHECK(kinds == std::vector<Kind>{Kind::integer, Kind::array, Kind::object});
}

TEST_CASE("integers are exact and never pass through double") {
  const auto document = parse(
      "[9007199254740993,9223372036854775807,-9223372036854775808,18446744073709551615,-0,1.0,"
      "1e3]");
  std::vector<JsonValue> items;
  for (const JsonValue item : document->root().items()) items.push_back(item);
  CHECK(items[0].integer() == 9007199254740993);
  CHECK(items[1].integer() == INT64_MAX);
  CHECK(items[2].integer() == INT64_MIN);
  CHECK(items[3].unsigned_integer() == UINT64_MAX);
  CHECK(items[2].number() == -0x1p63);
  CHECK(std::signbit(items[4].number()));
  const auto error = [&](size_t i) { return error_text([&] { items[i].integer(); }); };
  CHECK(contains(error(3), "f.json: [3]: is 18446744073709551615, expected at most"));
  CHECK(contains(error(4), "[4]: is a number, expected an integer"));
  CHECK(contains(error(5), "[5]: is a number, expected an integer"));
  CHECK(contains(error(6), "[6]: is a number, expected an integer"));
  CHECK(contains(error_text([&] { items[0].number(); }), "cannot hold exactly"));
  CHECK(contains(error_text([&] { items[1].number(); }), "cannot hold exactly"));
  CHECK(contains(error_text([&] { items[2].unsigned_integer(); }), "expected at least 0"));
  CHECK(contains(error_text([&] { items[0].integer(0, 5); }), "expected at most 5"));
  CHECK(contains(error_text([&] { items[2].integer(-5); }), "expected at least -5"));
}

TEST_CASE("numbers that are not finite are names") {
  const auto document = parse(R"(["inf","-inf","nan",2,"two"])");
  std::vector<JsonValue> items;
  for (const JsonValue item : document->root().items()) items.push_back(item);
  CHECK(items[0].number_or_name() == std::numeric_limits<double>::infinity());
  CHECK(items[1].number_or_name() == -std::numeric_limits<double>::infinity());
  CHECK(std::isnan(items[2].number_or_name()));
  CHECK(items[3].number_or_name() == 2);
  CHECK(contains(error_text([&] { items[4].number_or_name(); }), "is \"two\", expected a number"));
  CHECK(contains(error_text([&] { items[0].number(); }), "is a string, expected a number"));
}

TEST_CASE("errors name the file, the field, the byte and what was expected") {
  const auto document = parse(R"({"a":[{"b":1},{"c.d":[2,[3,{"e":"x"}]]}],"\u001b[1m":4})");
  const JsonValue deep = [&] {
    JsonValue at = document->root().at("a");
    for (const JsonValue item : document->root().at("a").items()) at = item;
    for (const JsonValue item : at.at("c.d").items()) at = item;
    for (const JsonValue item : at.items()) at = item;
    return at.at("e");
  }();
  CHECK(deep.path() == R"(a[1]["c.d"][1][1].e)");
  CHECK(error_text([&] { deep.integer(); }) ==
        R"(f.json: a[1]["c.d"][1][1].e: is a string, expected an integer (line 1, column 33))");
  CHECK(error_text([&] { document->root().boolean(); }) ==
        "f.json: is an object, expected a bool (line 1, column 1)");
  CHECK(contains(error_text([&] { document->root().at("b"); }), "lacks the field \"b\""));
  const std::string unknown = error_text([&] { document->root().only({"a", "b"}); });
  CHECK(contains(unknown, R"(["\x1b[1m"]: is an unknown field; known are a b)"));
  CHECK(contains(error_text([&] { deep.size(); }), "is a string, expected an array"));
  CHECK(contains(error_text([&] { deep.items(); }), "expected an array"));
  CHECK(contains(error_text([&] { deep.members(); }), "expected an object"));
  CHECK(
      contains(parse_error(R"({"a":{"b":[1,2,x]}})"),
               "f.json: invalid JSON: a.b[2]: syntax error while parsing value - invalid literal, "
               "read \"2,x\" (line 1, column 16)"));
}

TEST_CASE("what is not strict JSON is refused") {
  const std::pair<std::string_view, const char*> cases[] = {
      {""sv, "end of input"},
      {" \n"sv, "end of input"},
      {"\xef\xbb\xbf{}"sv, "byte order mark"},
      {"{}\0"sv, "unexpected NUL character (line 1, column 3)"},
      {"\0"sv, "unexpected NUL"},
      {"{\0}"sv, "unexpected NUL"},
      {"{} {}"sv, "expected end of input"},
      {"{}x"sv, "invalid literal"},
      {"// c\n{}"sv, "invalid literal, read \"/\""},
      {"[1/* c */]"sv, "invalid literal, read \"1/\""},
      {"[1,]"sv, "unexpected ']'"},
      {"[,1]"sv, "unexpected ','"},
      {"[1 2]"sv, "expected ']'"},
      {"[1}"sv, "expected ']'"},
      {"["sv, "end of input"},
      {"[1"sv, "end of input"},
      {"]"sv, "unexpected ']'"},
      {"{\"a\":1,}"sv, "while parsing object key"},
      {"{a:1}"sv, "while parsing object key"},
      {"{'a':1}"sv, "while parsing object key"},
      {"{1:1}"sv, "expected string literal"},
      {"{\"a\"}"sv, "expected ':'"},
      {"{\"a\" 1}"sv, "expected ':'"},
      {"{\"a\":}"sv, "unexpected '}'"},
      {"{\"a\":1 \"b\":2}"sv, "expected '}'"},
      {"{\"a\":1"sv, "end of input"},
      {"{\"a\":1,\n\"b\":2,\"a\":3}"sv,
       "f.json: invalid JSON: the key \"a\" appears twice, first at line 1, column 2 (line 2, "
       "column 7)"},
      {"[0,{\"b\":{\"a\":1,\"\\u0061\":3}}]"sv, "[1].b: the key \"a\" appears twice"},
      {"NaN"sv, "what is not finite"},
      {"[1,Infinity]"sv, "what is not finite"},
      {"-Infinity"sv, "what is not finite"},
      {"nul"sv, "invalid literal"},
      {"True"sv, "invalid literal"},
      {"truex"sv, "invalid literal"},
      {"01"sv, "expected end of input"},
      {"-"sv, "expected digit"},
      {"-x"sv, "expected digit"},
      {"+1"sv, "invalid literal"},
      {".5"sv, "invalid literal"},
      {"1."sv, "expected digit"},
      {"1.e3"sv, "expected digit"},
      {"1e"sv, "digit after exponent"},
      {"1e+"sv, "expected digit"},
      {"0x10"sv, "invalid literal"},
      {"1e400"sv, "the number \"1e400\" is outside the range of a double"},
      {"[0, -1e400]"sv, "[1]: the number \"-1e400\" is outside the range of a double (line 1, co"},
      {"1e-400"sv, "outside the range of a double"},
      {"-0.001e-400"sv, "outside the range of a double"},
      {"1e99999999999999999999"sv, "outside the range of a double"},
      {"18446744073709551616"sv, "outside the range of 64 bits"},
      {"-9223372036854775809"sv, "outside the range of 64 bits"},
      {"\""sv, "closing quote"},
      {"\"a"sv, "closing quote"},
      {"\"\n\""sv, "must be escaped"},
      {"\"\x1f\""sv, "must be escaped"},
      {"\"\0\""sv, "NUL"},
      {"\"\\t\x1f\""sv, "must be escaped"},
      {"\"\\"sv, "after backslash"},
      {"\"\\x41\""sv, "after backslash"},
      {"\"\\'\""sv, "after backslash"},
      {"\"\\u00g0\""sv, "4 hex digits"},
      {"\"\\u12\""sv, "4 hex digits"},
      {"\"\\u0000\""sv, "NUL"},
      {"{\"a\\u0000\":1}"sv, "NUL"},
      {"\"\\ud800\""sv, "must be followed"},
      {"\"\\ud800x\""sv, "must be followed"},
      {"\"\\ud800\\n\""sv, "must be followed"},
      {"\"\\ud800\\u0041\""sv, "must be followed"},
      {"\"\\ud800\\ud800\""sv, "must be followed"},
      {"\"\\udc00\""sv, "must follow"},
      {"\"\xff\""sv, "UTF-8"},
      {"\"\xc3\""sv, "UTF-8"},
      {"\"\x80\""sv, "UTF-8"},
      {"\"\xc0\x80\""sv, "UTF-8"},
      {"\"\xe0\x80\x80\""sv, "UTF-8"},
      {"\"\xed\xa0\x80\""sv, "UTF-8"},
      {"\"\xf0\x80\x80\x80\""sv, "UTF-8"},
      {"\"\xf4\x90\x80\x80\""sv, "UTF-8"},
      {"\"\xf8\x88\x80\x80\x80\""sv, "UTF-8"},
      {"\"12345678\xe2\x82\""sv, "UTF-8"},
  };
  for (const auto& [text, expected] : cases) {
    const std::string error = parse_error(text);
    CAPTURE(text, error);
    CHECK(contains(error, "f.json: invalid JSON: "));
    CHECK(contains(error, expected));
    CHECK(contains(error, "(line "));
  }
}

TEST_CASE("the place of an error is counted in lines and characters") {
  const auto document = parse(
      "{\"\xc3\xa9\":\t\"a\\\"]},\",\n \"x\" :[ true,\n\t[1.5e+3 ,-0.25] , \"\\\\\", null,{} ],\r\n"
      "\"y\":false}\n");
  const auto error = [](JsonValue value) { return error_text([&] { value.fail("here"); }); };
  std::vector<std::string> places;
  for (const JsonValue item : document->root().at("x").items()) places.push_back(error(item));
  CHECK(contains(error(document->root().at("\xc3\xa9")), "here (line 1, column 7)"));
  REQUIRE(places.size() == 5);
  CHECK(contains(places[0], "x[0]: here (line 2, column 9)"));
  CHECK(contains(places[1], "x[1]: here (line 3, column 2)"));
  CHECK(contains(places[2], "x[2]: here (line 3, column 20)"));
  CHECK(contains(places[3], "x[3]: here (line 3, column 26)"));
  CHECK(contains(places[4], "x[4]: here (line 3, column 31)"));
  CHECK(contains(error(document->root().at("y")), "y: here (line 4, column 5)"));
}

TEST_CASE("an error's text is safe to print and short, whatever was read") {
  const std::string escape = parse_error("\"\xc2\x9b[1m\" \xc2\x9b");
  CHECK(contains(escape, "read \"\\x22\\xc2\\x9b[1m\\x22 \\xc2\""));
  const std::string long_ones = std::string(100'000, '7');
  for (const std::string& text : {'"' + long_ones, "[\"" + long_ones + "\" 1]", long_ones + 'x',
                                  long_ones, "1e" + long_ones, "[\"" + long_ones + "\",x]"}) {
    CHECK(parse_error(text).size() < 250);
  }
}

TEST_CASE("limits hold") {
  const auto nested = [](int depth, char open, const char* close) {
    std::string text;
    for (int i = 0; i < depth; ++i) text += open == '[' ? "[" : "{\"a\":";
    text += open == '[' ? "" : "1";
    for (int i = 0; i < depth; ++i) text += close;
    return text;
  };
  CHECK_NOTHROW(parse(nested(64, '[', "]")));
  CHECK_NOTHROW(parse(nested(64, '{', "}")));
  CHECK(contains(parse_error(nested(65, '[', "]")), "nested deeper than 64"));
  CHECK(contains(parse_error(nested(65, '{', "}")), "nested deeper than 64"));
  CHECK(contains(parse_error(std::string(100'000, '[')), "nested deeper than 64"));
  JsonLimits limits;
  limits.bytes = 5;
  CHECK_NOTHROW(parse("[1,2]", limits));
  CHECK(contains(parse_error("[1,23]", limits), "has 6 bytes, more than the 5"));
  limits = {};
  limits.values = 3;
  CHECK_NOTHROW(parse("[1,2]", limits));
  CHECK(contains(parse_error("[1,2,3]", limits), "more than the 3 values"));
  CHECK(contains(parse_error("{\"a\":1,\"b\":2}", limits), "more than the 3 values"));
  limits = {};
  limits.string = 4;
  CHECK_NOTHROW(parse("[\"1234\",\"\\n234\"]", limits));
  CHECK(contains(parse_error("\"12345\"", limits), "a string has 5 bytes, more than the 4"));
  CHECK(contains(parse_error("\"\\n2345\"", limits), "more than the 4 that are allowed"));
  CHECK(contains(parse_error("{\"12345\":0}", limits), "a string has 5 bytes"));
}

TEST_CASE("a key that appears twice is found among many") {
  std::string text = "{";
  for (int i = 0; i < 5000; ++i) text += plumb::text("\"k", i, "\":0,");
  CHECK_NOTHROW(parse(text + "\"k5000\":0}"));
  CHECK(contains(parse_error(text + "\"k77\":0}"), "the key \"k77\" appears twice"));
}

}  // namespace
}  // namespace plumb::harness
