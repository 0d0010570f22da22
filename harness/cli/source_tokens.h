// The tokens of a CUDA file, as far as emulated_source.cpp needs them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace plumb::harness {

struct SourceToken {
  enum class Kind { word, literal, mark, include };  // a mark is one character
  Kind kind;
  size_t begin, end;  // in the text; of an include the name between its quotes
};

// Without comments and without includes in angle brackets.
std::vector<SourceToken> source_tokens(std::string_view text);

}  // namespace plumb::harness
