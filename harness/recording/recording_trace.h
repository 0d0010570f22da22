// What a version 2 recording says of a checkpoint's arithmetic: the operations that the traced run
// had, its rounded model, and the spread of simulated correct kernels.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "harness/io/json.h"
#include "harness/recording/spread.h"
#include "kernels/core/tensor.h"

namespace plumb::harness {

// One arithmetic operation of a traced run.
struct Operation {
  std::string op;  // aten's name: "bmm"
  DType stores = DType::f32;
  int64_t terms = 1;  // of the longest sum behind one element
  bool fed = true;    // a sum by the 16-bit results before it in the list, if there are any
};
using Operations = std::vector<Operation>;

// The rounded model m of an output as its difference from the reference r; without keys m is r.
struct ModelRef {
  std::string at;      // i32 or i64 [n]: flat positions in the stored tensor, ascending
  std::string values;  // of the output's dtype [n]: m there
};

Operations read_operations(JsonValue list);

// By key, shared by the checkpoints whose runs had the same.
std::map<std::string, std::shared_ptr<const Operations>> read_traces(JsonValue traces);

// With exactly the gates that an output has which is sampled or not, and of this dtype.
Spread read_spread(JsonValue value, const Shape& shape, const std::vector<std::string>& axes,
                   DType dtype, bool sampled);

// "operation 3 of 5, mean, stores bf16": the first that rounds below the run's dtype; empty where
// none does.
std::string narrowed_by(const Operations& operations, DType dtype);

// Mean, deviation and largest of one statistic.
SpreadOf read_figures(const std::string& gate, JsonValue value);

// Throws BadInput unless these integers (i32 or i64) ascend from 0 and end below `end`.
void check_ascending(const Tensor& indices, int64_t end, const std::string& where);

// m, from r as it is stored and the positions (i32 or i64) where it is otherwise. BadInput unless
// these ascend within r.
Tensor rounded_model(const Tensor& reference, const Tensor& at, const Tensor& values,
                     const std::string& where);

}  // namespace plumb::harness
