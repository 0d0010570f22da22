#include "harness/ops/sample_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <ranges>
#include <set>

#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

constexpr int64_t kSmall = 1 << 14;  // elements of an operand: an emulated device makes them, too
constexpr int64_t kMany = 257;       // kernels change at 256 rows

std::vector<int64_t> range(int64_t first, int64_t last) {
  std::vector<int64_t> out(static_cast<size_t>(last - first));
  std::iota(out.begin(), out.end(), first);
  return out;
}

class Variations {
 public:
  Variations(int64_t count, int64_t most)
      : count_(count), most_(std::max(most, count + 1)), all_(range(0, count)) {}

  std::vector<RowVariation> made() {
    if (count_ > 1) {
      batch();
      position();
      neighbours();
      part("chunks", 0, count_ / 2);
      part("chunks", count_ / 2, count_);
    }
    if (count_ > 0) padding();
    return std::move(out_);
  }

 private:
  void part(const char* relation, int64_t first, int64_t last) {
    const std::string words =
        last == first + 1 ? text("row ", first) : text("rows ", first, ":", last);
    out_.push_back({relation, text("with ", words, " of ", count_, " alone"), range(first, last),
                    range(0, last - first)});
  }
  void batch() {
    for (const int64_t row : std::set{int64_t{0}, count_ / 2, count_ - 1})
      part("batch", row, row + 1);
    for (int64_t size = 2; size < count_; size *= 2) {
      part("batch", 0, size);
      if (size + 1 < count_) part("batch", 0, size + 1);
    }
  }
  void position() {
    std::vector<int64_t> moved = all_;
    std::ranges::rotate(moved, moved.begin() + 1);
    out_.push_back({"position", "with the rows moved by one place", moved, all_});
    std::ranges::reverse_copy(all_, moved.begin());
    if (count_ > 2) out_.push_back({"position", "with the rows in reverse order", moved, all_});
  }
  // Every other row keeps its operands, and then those between them.
  void neighbours() {
    constexpr std::pair<RowFill, const char*> kFills[] = {{RowFill::nan, "NaN"},
                                                          {RowFill::infinity, "infinity"},
                                                          {RowFill::largest, "the largest number"},
                                                          {RowFill::none, "copies"}};
    for (const auto& [fill, name] : kFills) {
      for (int64_t kept = 0; kept < 2; ++kept) {
        RowVariation it{"neighbours", text("with ", name, " in every other row"), all_, {}, fill};
        for (const int64_t row : all_) {
          if (row % 2 == kept) it.judged.push_back(row);
          else it.source[static_cast<size_t>(row)] = kept;
        }
        out_.push_back(std::move(it));
      }
    }
  }
  void padding() {
    for (const int64_t size : std::set{count_ + 1, 4 * count_, kMany}) {
      if (size <= count_ || size > most_) continue;
      for (const RowFill fill : {RowFill::zero, RowFill::nan}) {
        const char* name = fill == RowFill::zero ? " rows of zeros" : " rows of NaN";
        RowVariation it{"padding", text("with ", size - count_, name, " after the ", count_), all_,
                        all_, fill};
        it.source.resize(static_cast<size_t>(size));
        out_.push_back(std::move(it));
      }
    }
  }

  const int64_t count_, most_;
  const std::vector<int64_t> all_;
  std::vector<RowVariation> out_;
};

void fill_row(const Tensor& host, int64_t row, RowFill fill) {
  const auto value = [&] {
    switch (fill) {
      case RowFill::nan: return std::numeric_limits<double>::quiet_NaN();
      case RowFill::infinity: return std::numeric_limits<double>::infinity();
      case RowFill::largest: return info(host.dtype()).max;
      default: return 0.0;
    }
  }();
  const int64_t items = host.numel() / host.dim(0);
  char* at = host.data<char>() + row * items * size_of(host.dtype());
  for (int64_t i = 0; i < items; ++i) store(host.dtype(), at + i * size_of(host.dtype()), value);
}

}  // namespace

std::vector<int64_t> RowVariation::judged_sources() const {
  std::vector<int64_t> out;
  for (const int64_t place : judged) out.push_back(source[static_cast<size_t>(place)]);
  return out;
}

std::vector<RowVariation> row_variations(int64_t count, int64_t most) {
  return Variations(count, most).made();
}

// A cumsum or another reduction along the leading axis adds rows up.
SampleRows::SampleRows(const OpSample& sample) : sample_(sample), tensors_(sample.call.tensors()) {
  const OpRow& row = row_of(sample.call.op);
  const bool adds_up = (row.along_axis && sample.call.get<int64_t>() == 0) ||
                       (row.reduction && sample.call.get<Axes>().has(0));
  for (size_t i = 0; i < tensors_.size() && !adds_up; ++i) {
    const Operand& operand = row.operands.operands.at(i);
    const Tensor& t = tensors_[i];
    const int8_t letter = operand.axes[0].letter;
    // An input of fewer axes than the output's is a broadcast one, whose first axis is another.
    const int leading = t.defined() ? t.rank() - operand.rank : 0;
    if (i == 0) leading_ = leading;
    const bool leads = row.reduction ? true
                       : operand.leading
                           ? leading > 0 && (leading == leading_ || leading_ == 0)
                           : operand.rank > 0 && letter >= 0 &&
                                 row.operands.letters.at(static_cast<size_t>(letter)) == 'B';
    if (i == 0 && leads) count_ = t.dim(0);
    has_.push_back(leads && t.defined() && t.dim(0) == count_);
  }
}

int64_t SampleRows::most() const {
  if (count_ == 0) return 0;
  int64_t largest = 1;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (has_rows(i)) largest = std::max(largest, tensors_[i].numel() / count_);
  }
  return kSmall / largest;
}

OpSample SampleRows::with(const std::vector<int64_t>& source) const {
  std::vector<Tensor> out = tensors_;
  for (size_t i = 0; i < out.size(); ++i) {
    if (has_rows(i)) out[i] = rows_of(out[i], source);
  }
  return {sample_.name, sample_.call.with(out), sample_.layout, sample_.in_place};
}

OpSample SampleRows::with(const RowVariation& variation) const {
  OpSample out = with(variation.source);
  if (variation.fill == RowFill::none) return out;
  const std::vector<Tensor> tensors = out.call.tensors();
  for (int64_t row = 0; row < std::ssize(variation.source); ++row) {
    if (std::ranges::binary_search(variation.judged, row)) continue;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const bool reads = has_rows(i) && !out.call.writes(i);
      if (reads && is_floating(tensors[i].dtype())) fill_row(tensors[i], row, variation.fill);
    }
  }
  return out;
}

Tensor rows_of(const Tensor& host, const std::vector<int64_t>& places) {
  Shape shape = host.shape();
  shape.set(0, std::ssize(places));
  const Tensor out = host_tensor(host.dtype(), shape);
  const int64_t bytes = host.dim(0) > 0 ? host.bytes() / host.dim(0) : 0;
  char* to = out.data<char>();
  for (const int64_t place : places) {
    std::memcpy(to, host.data<char>() + place * bytes, static_cast<size_t>(bytes));
    to += bytes;
  }
  return out;
}

}  // namespace plumb::harness
