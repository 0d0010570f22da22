// What `harness bench` measures: blocks with operands of a model's shape.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "blocks/context.h"
#include "harness/bench/shapes.h"

namespace plumb::harness {

// What an operand is filled with; outputs stay as they are allocated.
struct Fill {
  enum Kind { output, normal, ids, positions, frequencies, flags } kind = output;
  double mean = 0, deviation = 1;  // normal
  int64_t limit = 0;               // ids: below it
};

struct BenchOperand {
  std::string name;
  DType dtype;
  Shape shape;
  Fill fill;
  bool shared = false;  // one for all sets: outputs, a table of which a call reads few rows
};

using BenchOperands = std::map<std::string, Tensor>;

struct BenchCase {
  std::string block;  // a name of the catalog, or of a fused op
  std::string name;   // "linear.q_proj": block, or block and which one
  std::vector<BenchOperand> operands;
  // The call on one set of operands, with nothing left to look up.
  std::function<std::function<void(blocks::Context&)>(const BenchOperands&)> bind;
};

struct BenchSizes {
  int64_t tokens = 0;
  int64_t context = 0;  // keys in all, the new tokens' included
  DType dtype = DType::bf16;
};

// Every case of a shape, in the order of a decoder layer, then single operations.
std::vector<BenchCase> bench_cases(const BenchShape& shape, const BenchSizes& sizes);

}  // namespace plumb::harness
