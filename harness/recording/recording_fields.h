// Fields that several parts of a recording share.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/io/json.h"
#include "kernels/core/tensor.h"

namespace plumb::harness {

// 1 to 1024 bytes and no control characters.
std::string read_name(JsonValue value);
// The same of a member's key; `value` is named in the error.
std::string read_key(const JsonMember& member);
std::string_view read_one_of(JsonValue value, std::span<const std::string_view> known);
// Versions of the format: the first has no traces, gradients came with the last.
inline constexpr int64_t kOldestVersion = 1, kWithTraces = 2, kWithBackward = 3;
// BadInput where an object of a recording of this `version` has a member that is known since
// another one.
void refuse_before(int64_t since, JsonValue value, int64_t version,
                   std::initializer_list<std::string_view> names);
// 64 lower-case hexadecimal digits.
std::string read_sha256(JsonValue value);
// One of f64 f32 f16 bf16 i64 i32 u8 bool.
DType read_recorded_dtype(JsonValue value);
// The same, or codes of quantised weights.
DType read_tensor_dtype(JsonValue value);
// At most 8 extents; their product in bytes of any dtype does not overflow.
Shape read_extents(JsonValue value);
// Different names out of the format's list of axes, one per dimension of `shape` (of the tensor
// `key`).
std::vector<std::string> read_axes(JsonValue value, const std::string& key, const Shape& shape);

}  // namespace plumb::harness
