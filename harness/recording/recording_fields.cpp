#include "harness/recording/recording_fields.h"

#include <algorithm>
#include <array>

#include "harness/io/printable.h"
#include "harness/io/safetensors.h"

namespace plumb::harness {
namespace {

constexpr std::array<std::string_view, 8> kDTypes = {"f64", "f32", "f16", "bf16",
                                                     "i64", "i32", "u8",  "bool"};
constexpr std::array<std::string_view, 11> kTensorDTypes = {
    "f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "i64", "i32", "i8", "u8", "bool"};
constexpr std::array<std::string_view, 10> kAxes = {"batch",   "token",    "kv_token", "head",
                                                    "kv_head", "head_dim", "channel",  "vocab",
                                                    "group",   "state"};

}  // namespace

std::string read_name(JsonValue value) {
  const std::string_view name = value.string();
  if (!is_sane_name(name)) {
    value.fail("is ", printable(name), " (", name.size(), " bytes), expected 1 to ", kLongestName,
               " bytes and no control characters");
  }
  return std::string(name);
}

std::string read_key(const JsonMember& member) {
  if (!is_sane_name(member.name)) {
    member.value.fail("its key has ", member.name.size(), " bytes, expected 1 to ", kLongestName,
                      " and no control characters");
  }
  return std::string(member.name);
}

std::string_view read_one_of(JsonValue value, std::span<const std::string_view> known) {
  const std::string_view name = value.string();
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    std::string names;
    for (const std::string_view candidate : known) names.append(" ").append(candidate);
    value.fail("is ", printable(name), ", expected one of", names);
  }
  return name;
}

void refuse_before(int64_t since, JsonValue value, int64_t version,
                   std::initializer_list<std::string_view> names) {
  if (version >= since) return;
  for (const std::string_view name : names) {
    if (const auto found = value.find(name)) {
      found->fail("belongs to version ", since, ", version is ", version);
    }
  }
}

std::string read_sha256(JsonValue value) {
  const std::string_view hash = value.string();
  const bool valid = hash.size() == 64 && std::all_of(hash.begin(), hash.end(), [](char c) {
                       return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
                     });
  if (!valid) value.fail("is ", printable(hash), ", expected 64 lower-case hexadecimal digits");
  return std::string(hash);
}

DType read_recorded_dtype(JsonValue value) { return *dtype_from_name(read_one_of(value, kDTypes)); }

DType read_tensor_dtype(JsonValue value) {
  return *dtype_from_name(read_one_of(value, kTensorDTypes));
}

Shape read_extents(JsonValue value) {
  std::vector<int64_t> extents;
  int64_t bytes = 8;  // of the largest dtype
  for (const JsonValue extent : value.items()) {
    if (extents.size() == kMaxRank) {
      value.fail("the rank is ", value.size(), ", expected at most ", kMaxRank);
    }
    extents.push_back(extent.integer(0));
    if (__builtin_mul_overflow(bytes, std::max(extents.back(), int64_t{1}), &bytes)) {
      value.fail("has more than 2^63 - 1 bytes");
    }
  }
  return Shape(extents);
}

std::vector<std::string> read_axes(JsonValue value, const std::string& key, const Shape& shape) {
  std::vector<std::string> axes;
  for (const JsonValue axis : value.items()) {
    const std::string_view name = read_one_of(axis, kAxes);
    if (std::find(axes.begin(), axes.end(), name) != axes.end()) {
      value.fail("names the axis ", name, " twice");
    }
    axes.emplace_back(name);
  }
  if (static_cast<int>(axes.size()) != shape.rank()) {
    value.fail("has ", axes.size(), " names, but the tensor ", key, ' ', shape, " has ",
               shape.rank(), " dimensions");
  }
  return axes;
}

}  // namespace plumb::harness
