// How quantised weights are stored. A weight [N, K] is (code - zero) * scale, where a scale and a
// zero belong to a group of codes: of so many rows and columns as the shape of the scales says.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/core/dtype.h"

namespace plumb {

enum class QuantLayout : uint8_t {
#define PLUMB_LAYOUT(id, ...) id,
#include "kernels/ops/layout_list.h"
};
inline constexpr int kLayouts = 0
#define PLUMB_LAYOUT(...) +1
#include "kernels/ops/layout_list.h"
    ;

// What the tensor of codes has: an i8, a float of 8 bits, two codes of 4 bits in a u8, eight in an
// i32, or blocks of bytes with all that belongs to them.
enum class CodeType : uint8_t { blocks, i8, f8, bytes, words };
// What a code means: itself, or one of 16 values.
enum class CodeGrid : uint8_t { number, e2m1, nf4 };
// Zeros: whole numbers as they are, or packed as the codes are.
enum class ZeroType : uint8_t { none, plain, words };

// The scales of a block's groups: one for all; of 4 bits with as many for what is taken off; of 6
// bits less 32; of 6 bits with as many for what is taken off; an i8 each.
enum class BlockScales : uint8_t { none, nibbles, six_bits, six_bits_and_least, bytes };

// Bits of the codes of a block: the lowest of each of `run` bytes, then the next ones of these.
struct CodePlane {
  int16_t at = 0;  // the first byte
  int16_t bits = 0, run = 1;
  int16_t place = 0;  // in the code
};
struct BlockLayout {
  int16_t bytes = 0, codes = 0, group = 0;
  CodePlane low{}, high{};  // of 8 bits: signed
  int16_t scale = 0;        // where the f16 is that multiplies all
  int16_t least = -1;       // and the one that is added, or, times the group's, taken off; -1: none
  BlockScales parts = BlockScales::none;
  int16_t parts_at = 0;
};

// Where code i of a word is, four bits each: the lowest i first.
inline constexpr uint32_t kLowFirst = 0x76543210, kHighFirst = 0x01;
inline constexpr uint32_t kInterleaved = 0x73625140;  // AutoAWQ: awq/utils/packing_utils.py

struct LayoutRow {
  const char* name;
  CodeType codes = CodeType::blocks;
  uint32_t places = kLowFirst;
  int8_t packed_axis = 1;  // of the tensor of codes, the one along which words have their codes
  bool by_input = false;   // all are stored [K, N]
  int8_t offset = 0;       // is taken off each code
  CodeGrid grid = CodeGrid::number;
  ZeroType zeros = ZeroType::none;
  int8_t zeros_axis = 0;          // along which words have their zeros
  bool zeros_less_one = false;    // as they are stored
  bool exponents = false;         // a scale is a u8, 2^(it - 127), or NaN of 255
  bool has_global_scale = false;  // by which the scales are divided, in float32
  bool has_group_index = false;   // it may be left out; else of each column the group
  bool of_several_rows = false;   // a scale may be
  int16_t flat = 0;               // a scale is of so many codes in a row, over all rows
  BlockLayout block{};
};

const LayoutRow& row_of(QuantLayout layout);
std::optional<QuantLayout> layout_from_name(std::string_view name);  // "gptq-v2"
inline std::string_view name_of(QuantLayout layout) { return row_of(layout).name; }

}  // namespace plumb
