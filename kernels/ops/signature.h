// What operands an op takes, in letters that one can read:
//
//   out[*,N] = x[*,K], weight[N,K]: narrow, bias[N]?; G divides H
//
// "[..]" is any shape: the op's method checks it.
// Outputs come first. A letter is one extent of a call, "2F" twice F, "1|B" is B or 1, a digit is
// itself; "*" is any leading axes; an operand with "?" may be absent. The colon gives a dtype where
// it is not the storage dtype of the call, which is that of its first operand without one.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "kernels/core/dtype.h"

namespace plumb {

enum class OperandType : uint8_t {
  storage,  // the dtype of the call: a float, or another one of the row's
  same,     // that dtype
  total,    // of what its elements add up to: it, or i64 of whole numbers
  sums,     // of products: it, f32 of floats of 8 bits, i32 of whole numbers
  i64,
  ids,  // i64, i32, u32 or u8
  boolean,
  wide,      // float32, or float64 where the storage dtype is that
  narrow,    // the storage dtype, or any float where a float64 run takes weights as recorded
  floating,  // any float dtype
  codes,     // of quantised values: i8, u8, i32, or a float of 8 bits (float64 where the run is)
  scales,    // of those: any float dtype, or u8
  any,
};

inline bool is_id(DType dtype) {
  return dtype == DType::i64 || dtype == DType::i32 || dtype == DType::u32 || dtype == DType::u8;
}

// In float64 runs codes that are floats are f64, as all floats are.
inline bool is_code(DType dtype) {
  return dtype == DType::i8 || dtype == DType::u8 || dtype == DType::i32 ||
         dtype == DType::f8_e4m3 || dtype == DType::f8_e5m2 || dtype == DType::f64;
}

struct Extent {
  int8_t letter = -1;      // its place among the signature's letters; -1: the number itself
  int8_t number = 1;       // the extent, or how often the letter
  bool broadcast = false;  // or 1
};

inline constexpr int kMostAxes = 5, kMostOperands = 18, kMostLetters = 10;

struct Operand {
  std::string_view name;
  std::string_view letters;  // "[*,K]", for messages
  std::array<Extent, kMostAxes> axes{};
  int8_t rank = 0;         // without the leading axes
  bool leading = false;    // "*"
  bool any_shape = false;  // ".."
  bool optional = false;
  OperandType type = OperandType::storage;
};

struct Signature {
  std::array<Operand, kMostOperands> operands{};
  int count = 0, outputs = 0;
  std::array<char, kMostLetters> letters{};
  int letter_count = 0;
  int8_t divisor = -1, multiple = -1;  // letters

  constexpr int8_t place_of(char letter) const {
    for (int i = 0; i < letter_count; ++i) {
      if (letters[static_cast<size_t>(i)] == letter) return static_cast<int8_t>(i);
    }
    throw "a letter that no operand has";
  }
};

namespace signature_detail {

class Parser {
 public:
  constexpr explicit Parser(std::string_view text) : text_(text) {}

  constexpr Signature parse() {
    operand();
    while (take(", ")) operand();
    out_.outputs = out_.count;
    if (take(" = ")) {
      operand();
      while (take(", ")) operand();
    }
    if (take("; ")) {
      out_.divisor = out_.place_of(next());
      expect(" divides ");
      out_.multiple = out_.place_of(next());
    }
    if (!text_.empty()) throw "text behind the last operand";
    return out_;
  }

 private:
  constexpr char next() {
    const char c = text_.at(0);
    text_.remove_prefix(1);
    return c;
  }
  constexpr bool take(std::string_view what) {
    if (!text_.starts_with(what)) return false;
    text_.remove_prefix(what.size());
    return true;
  }
  constexpr void expect(std::string_view what) {
    if (!take(what)) throw "not what a signature has here";
  }
  constexpr int8_t letter(char c) {
    for (int i = 0; i < out_.letter_count; ++i) {
      if (out_.letters[static_cast<size_t>(i)] == c) return static_cast<int8_t>(i);
    }
    out_.letters.at(static_cast<size_t>(out_.letter_count)) = c;
    return static_cast<int8_t>(out_.letter_count++);
  }
  static constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

  constexpr void operand() {
    Operand it;
    const size_t open = text_.find('[');
    it.name = text_.substr(0, open);
    text_.remove_prefix(open);
    it.letters = text_.substr(0, text_.find(']') + 1);
    expect("[");
    it.any_shape = take("..");
    if (take("*")) {
      it.leading = true;
      take(",");
    }
    while (!take("]")) {
      Extent& axis = it.axes.at(static_cast<size_t>(it.rank++));
      axis.broadcast = take("1|");
      if (is_digit(text_.at(0))) axis.number = static_cast<int8_t>(next() - '0');
      if (text_.at(0) != ',' && text_.at(0) != ']') axis.letter = letter(next());
      take(",");
    }
    if (take(": ")) it.type = type();
    it.optional = take("?");
    out_.operands.at(static_cast<size_t>(out_.count++)) = it;
  }

  constexpr OperandType type() {
    if (take("same")) return OperandType::same;
    if (take("total")) return OperandType::total;
    if (take("sums")) return OperandType::sums;
    if (take("i64")) return OperandType::i64;
    if (take("ids")) return OperandType::ids;
    if (take("bool")) return OperandType::boolean;
    if (take("wide")) return OperandType::wide;
    if (take("narrow")) return OperandType::narrow;
    if (take("floating")) return OperandType::floating;
    if (take("codes")) return OperandType::codes;
    if (take("scales")) return OperandType::scales;
    expect("any");
    return OperandType::any;
  }

  std::string_view text_;
  Signature out_;
};

}  // namespace signature_detail

// A text that is no signature does not compile.
consteval Signature signature(std::string_view text) {
  return signature_detail::Parser(text).parse();
}

}  // namespace plumb
