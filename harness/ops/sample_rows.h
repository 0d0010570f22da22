// The rows of an op's call, along the leading axis of its operands, and the same call of other
// rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops/samples.h"

namespace plumb::harness {

enum class RowFill : uint8_t { none, zero, nan, infinity, largest };

// One more call. `source`: for each of its rows the row whose operands it has; `judged`: the places
// whose outputs are compared with those of their sources; floats in other rows are `fill`.
struct RowVariation {
  const char* relation;
  std::string words;
  std::vector<int64_t> source;
  std::vector<int64_t> judged;
  RowFill fill = RowFill::none;

  std::vector<int64_t> judged_sources() const;
};

// Calls that show whether rows depend on others: alone, in other places, next to other rows, with
// rows added, in parts. `most`: rows that are not too many.
std::vector<RowVariation> row_variations(int64_t count, int64_t most);

class SampleRows {
 public:
  explicit SampleRows(const OpSample& sample);

  int64_t count() const { return count_; }  // 0: the operands have no rows
  int64_t most() const;
  bool has_rows(size_t tensor) const { return tensor < has_.size() && has_[tensor]; }
  // Its operands are these rows.
  OpSample with(const std::vector<int64_t>& source) const;
  OpSample with(const RowVariation& variation) const;

 private:
  const OpSample& sample_;
  const std::vector<Tensor> tensors_;
  std::vector<bool> has_;
  int64_t count_ = 0;
  int leading_ = 0;  // axes of "*", of the first operand
};

// Rows of a dense tensor on the host.
Tensor rows_of(const Tensor& host, const std::vector<int64_t>& places);

}  // namespace plumb::harness
