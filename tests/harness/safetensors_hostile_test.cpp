// Malformed safetensors files: every one is refused with the file, the place and both numbers, and
// without allocating what it claims.
#include <unistd.h>

#include "harness/io/safetensors.h"
#include "tests/catch.h"
#include "tests/harness/allocations.h"
#include "tests/harness/error_text.h"
#include "tests/harness/safetensors_bytes.h"
#include "tests/harness/temporary_folder.h"

namespace plumb::harness {
namespace {

using namespace std::string_literals;

const std::string kNothing = "nothing was thrown";
constexpr int64_t kMiB = int64_t{1} << 20;

// What opening says; checks that it stays within the file's size and 64 MiB.
std::string open_error(const std::filesystem::path& path) {
  std::string error;
  const int64_t peak =
      peak_of([&] { error = error_text([&] { SafetensorsFile(File::open(path)); }); });
  CHECK(peak < static_cast<int64_t>(std::filesystem::file_size(path)) + 64 * kMiB);
  if (error != kNothing) CHECK(contains(error, path.string()));
  return error;
}

std::string error_of(const std::string& bytes) {
  const TemporaryFolder folder;
  write_bytes(folder / "x", bytes);
  return open_error(folder / "x");
}

// A file of 8 payload bytes whose header describes one tensor "a".
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return safetensors_file("{\"a\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
                              ",\"data_offsets\":" + offsets + "}}",
                          std::string(8, 'x'));
}

TEST_CASE("wrong header lengths are refused") {
  const std::string good = "{}";
  for (size_t size = 0; size < 8; ++size) {
    CHECK(contains(error_of(std::string(size, '\x01')), "bytes, expected at least 8"));
  }
  CHECK(contains(error_of(safetensors_file(0, "", "")), "byte 0: the header's length is 0"));
  CHECK(contains(error_of(safetensors_file(3, good, "")), "length is 3, but only 2 bytes follow"));
  for (const uint64_t length : {uint64_t{1} << 31, uint64_t{1} << 32, uint64_t{1} << 63, UINT64_MAX,
                                UINT64_MAX - 7, UINT64_MAX - 8, uint64_t{100'000'000}}) {
    CAPTURE(length);
    CHECK(contains(error_of(safetensors_file(length, good, "")), "but only 2 bytes follow"));
  }
}

TEST_CASE("a header of more than 100 MB is refused, one of 100 MB is read within bounds") {
  const TemporaryFolder folder;
  const std::string path = folder / "x";
  write_bytes(path, safetensors_file(100'000'001, "{", ""));
  REQUIRE(::truncate(path.c_str(), 200'000'000) == 0);  // sparse
  CHECK(contains(open_error(path), "length is 100000001, more than the 100000000"));
  write_bytes(path, safetensors_file(100'000'000, "{", ""));
  REQUIRE(::truncate(path.c_str(), 200'000'000) == 0);
  CHECK(contains(open_error(path), "unexpected NUL character"));
}

TEST_CASE("headers that are no plain JSON object are refused") {
  const std::pair<std::string, const char*> cases[] = {
      {"[]", "byte 8: the header starts with \"[\", expected {"},
      {" {}", "the header starts with \" \""},
      {"\xef\xbb\xbf{}", "the header starts with \"\\xef\""},
      {"{", "end of input"},
      {"{}x", "invalid literal"},
      {"{}\0"s, "NUL"},
      {"{\"\xff\":1}", "UTF-8"},
      {"{\"a\":1}", "a: is an integer, expected an object"},
      {"{\"a\":{}}", "a: lacks the field \"dtype\""},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8],\"x\":0}}", "unknown field"},
      {"{\"__metadata__\":{\"a\":1}}", "is an integer, expected a string"},
      {"{\"__metadata__\":[]}", "is an array, expected an object"},
      {"{\"a\":" + std::string(99, '[') + std::string(99, ']') + "}", "nested deeper than 64"},
      {"{" + std::string(100'000, '['), "object key"},
  };
  for (const auto& [header, expected] : cases) {
    CAPTURE(header);
    CHECK(contains(error_of(safetensors_file(header, std::string(8, 'x'))), expected));
  }
}

TEST_CASE("headers with very many values are refused within bounds") {
  std::string many = "{";
  for (int i = 0; i < 1'000'000; ++i) {
    many += text('"', i) + "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},";
  }
  many.back() = '}';
  CHECK(contains(error_of(safetensors_file(many, "")), "more than the 1000000 values"));
  std::string lists = "{\"a\":[";
  for (int i = 0; i < 1'500'000; ++i) lists += "[],";
  CHECK(contains(error_of(safetensors_file(lists, "")), "more than the 1000000 values"));
  CHECK(contains(error_of(safetensors_file(
                     "{\"__metadata__\":{\"a\":\"" + std::string(2 << 20, 'x') + "\"}}", "")),
                 "more than the 1048576"));
}

TEST_CASE("wrong dtypes, shapes and offsets are refused") {
  CHECK(error_of(one("U8", "[8]", "[0,8]")) == kNothing);
  CHECK(error_of(one("U8", "[1,1,1,1,1,1,1,8]", "[0,8]")) == kNothing);
  const struct {
    const char* dtype;
    const char* shape;
    const char* offsets;
    const char* expected;
  } cases[] = {
      {"F4", "[16]", "[0,8]", "the dtype \"F4\" is unknown; known are F64"},
      {"F8_E8M0", "[8]", "[0,8]", "\"F8_E8M0\" is unknown"},
      {"u8", "[8]", "[0,8]", "\"u8\" is unknown"},
      {"", "[8]", "[0,8]", "\"\" is unknown"},
      {"U8", "[1,1,1,1,1,1,1,1,8]", "[0,8]", "the rank is 9, expected at most 8"},
      {"U8", "[-8]", "[0,8]", "shape[0]: is -8, expected at least 0"},
      {"U8", "[-2,-4]", "[0,8]", "shape[0]: is -2"},
      {"U8", "[8.0]", "[0,8]", "shape[0]: is a number, expected an integer"},
      {"U8", "[\"8\"]", "[0,8]", "expected an integer"},
      {"U8", "8", "[0,8]", "expected an array"},
      {"U8", "[-0,8]", "[0,0]", "expected an integer"},
      {"U8", "[18446744073709551615]", "[0,8]", "18446744073709551615"},
      {"U8", "[18446744073709551616]", "[0,8]", "outside the range of 64 bits"},
      {"U8", "[4294967296,4294967296]", "[0,0]", "more than 2^63 - 1 bytes"},  // wraps to 0
      {"U8", "[4294967296,4294967296,8]", "[0,8]", "more than 2^63 - 1 bytes"},
      {"F64", "[2305843009213693953]", "[0,8]", "more than 2^63 - 1 bytes"},  // wraps to 8
      {"F64", "[2305843009213693952]", "[0,0]", "more than 2^63 - 1 bytes"},
      {"U8", "[0,4294967296,4294967296]", "[0,0]", "more than 2^63 - 1 bytes"},
      {"U8", "[9]", "[0,8]", "spans 8 bytes, but [9] u8 has 9"},
      {"U8", "[7]", "[0,8]", "spans 8 bytes, but [7] u8 has 7"},
      {"F16", "[8]", "[0,8]", "spans 8 bytes, but [8] f16 has 16"},
      {"U8", "[]", "[0,8]", "spans 8 bytes, but [] u8 has 1"},
      {"U8", "[0]", "[0,8]", "spans 8 bytes, but [0] u8 has 0"},
      {"U8", "[8]", "[0,0]", "spans 0 bytes, but [8] u8 has 8"},
      {"U8", "[8]", "[8,0]", "ends at 0, before it begins at 8"},
      {"U8", "[8]", "[0,9]", "data_offsets[1]: is 9, expected at most 8"},
      {"U8", "[8]", "[-8,0]", "data_offsets[0]: is -8, expected at least 0"},
      {"U8", "[8]", "[9223372036854775807,9223372036854775807]", "expected at most 8"},
      {"U8", "[8]", "[18446744073709551608,0]", "expected at most 8"},
      {"U8", "[8]", "[0]", "has 1 numbers, expected 2"},
      {"U8", "[8]", "[0,8,8]", "has 3 numbers, expected 2"},
      {"U8", "[8]", "[0.0,8.0]", "is a number, expected an integer"},
      {"U8", "[8]", "8", "expected an array"},
      {"U8", "[4]", "[4,8]", "begins at 4, leaving a hole from 0"},
      {"U8", "[4]", "[0,4]", "the tensors end at 4, but 8 bytes follow the header"},
      {"U8", "[0]", "[8,8]", "begins at 8, leaving a hole from 0"},
  };
  for (const auto& c : cases) {
    const std::string error = error_of(one(c.dtype, c.shape, c.offsets));
    CAPTURE(c.dtype, c.shape, c.offsets, error);
    CHECK(contains(error, c.expected));
  }
}

// Two tensors "a" and "b" of u8 in 8 payload bytes.
std::string pair(int64_t a_begin, int64_t a_end, int64_t b_begin, int64_t b_end) {
  const auto entry = [](const char* name, int64_t begin, int64_t end) {
    return "\""s + name + "\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(end - begin) +
           "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
  };
  return safetensors_file("{" + entry("a", a_begin, a_end) + "," + entry("b", b_begin, b_end) + "}",
                          std::string(8, 'x'));
}

TEST_CASE("tensors must fill the file in some order") {
  CHECK(error_of(pair(0, 3, 3, 8)) == kNothing);
  CHECK(error_of(pair(3, 8, 0, 3)) == kNothing);
  CHECK(error_of(pair(0, 0, 0, 8)) == kNothing);  // an empty tensor takes no place
  CHECK(error_of(pair(0, 8, 8, 8)) == kNothing);
  CHECK(contains(error_of(pair(0, 4, 3, 8)), "\"b\" begins at 3, overlapping what ends at 4"));
  CHECK(contains(error_of(pair(0, 8, 0, 8)), "\"b\" begins at 0, overlapping what ends at 8"));
  CHECK(contains(error_of(pair(0, 8, 2, 4)), "\"b\" begins at 2, overlapping what ends at 8"));
  CHECK(contains(error_of(pair(0, 3, 4, 8)), "\"b\" begins at 4, leaving a hole from 3"));
  CHECK(contains(error_of(pair(0, 8, 4, 4)), "\"b\" begins at 4, overlapping what ends at 8"));
  CHECK(contains(error_of(pair(0, 3, 3, 7)), "end at 7, but 8 bytes follow"));
}

TEST_CASE("wrong names are refused") {
  const auto named = [](const std::string& name) {
    return error_of(safetensors_file(
        "{\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", "x"));
  };
  CHECK(named("model.layers.0/../..é") == kNothing);  // a name is no path here
  CHECK(named(std::string(1024, 'n')) == kNothing);
  CHECK(contains(named(std::string(1025, 'n')), "name has 1025 bytes, expected 1 to 1024"));
  CHECK(contains(named(std::string(65536, 'n')), "name has 65536 bytes"));
  CHECK(contains(named(""), "name has 0 bytes"));
  CHECK(contains(named("a\\u0000b"), "NUL"));
  CHECK(contains(named("a\\u001bb"), "no control characters"));
  CHECK(
      contains(error_of(safetensors_file("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":"
                                         "[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":[1],"
                                         "\"data_offsets\":[1,2]}}",
                                         "xy")),
               "the key \"a\" appears twice"));
}

}  // namespace
}  // namespace plumb::harness
