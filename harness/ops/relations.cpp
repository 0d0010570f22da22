#include "harness/ops/relations.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>

#include "harness/ops/judged_op.h"
#include "harness/ops/placed_sample.h"
#include "harness/ops/sample_rows.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

double value_at(const Tensor& t, int64_t item) {
  return load(t.dtype(), t.data<char>() + item * size_of(t.dtype()));
}

// NaN equals NaN: which bits it has means nothing.
bool same_bits(const Tensor& a, const Tensor& b, int64_t item) {
  const auto size = static_cast<size_t>(size_of(a.dtype()));
  const auto at = static_cast<size_t>(item) * size;
  if (std::memcmp(a.data<char>() + at, b.data<char>() + at, size) == 0) return true;
  return is_floating(a.dtype()) && std::isnan(value_at(a, item)) && std::isnan(value_at(b, item));
}

// The first element that differs; nothing where none does.
std::optional<int64_t> first_difference(const Tensor& a, const Tensor& b) {
  if (std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())) == 0) return {};
  for (int64_t i = 0; i < a.numel(); ++i) {
    if (!same_bits(a, b, i)) return i;
  }
  return {};
}

std::string number_words(double x) {
  char out[32];
  std::snprintf(out, sizeof(out), "%.9g", x);
  return out;
}

std::string index_words(const Shape& shape, int64_t item, const std::vector<int64_t>& rows) {
  std::string out = "]";
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    const int64_t at = item % shape[axis];
    item /= shape[axis];
    out = text(axis > 0 ? ", " : "[", axis > 0 ? at : rows[static_cast<size_t>(at)], out);
  }
  return out;
}

class Relations {
 public:
  Relations(const OpCase& op, const std::vector<Tensor>& outputs, Device& device, Device& oracle)
      : op_(op), rows_(op.sample), outputs_(outputs), device_(device), oracle_(oracle) {}

  void try_all(RowDemand demand, RelationTally& tally, CheckpointResult& result) {
    const std::vector<RowVariation> all = row_variations(rows_.count(), rows_.most());
    int64_t within = 0, lacking = 0;
    for (const RowVariation& variation : all) {
      try {
        make(variation);
      } catch (const Unsupported&) {  // of other rows
        ++lacking;
        continue;
      }
      ++tally.calls;
      std::string wrong = damage_;
      if (wrong.empty() && !differs(variation)) continue;
      if (wrong.empty()) wrong = demands_bits(demand) ? difference_ : beyond(variation);
      if (!wrong.empty()) {
        ++tally.tried;
        result.status = Status::fail;
        result.reason = text(variation.relation, ": ", wrong, ' ', variation.words);
        return;
      }
      ++within;
      ++tally.within[std::string(name_of(op_.op))];
    }
    const int64_t calls = std::ssize(all) - lacking;
    ++(calls > 0 ? tally.tried : tally.not_tried);
    result.details.push_back(words_of(all.empty(), calls, lacking, within));
  }

 private:
  static std::string words_of(bool no_rows, int64_t calls, int64_t lacking, int64_t within) {
    if (no_rows) return "relations: not tried: its operands have no rows";
    std::string out = within == 0 ? text("relations: the same bits in ", calls, " calls")
                                  : text("relations: other bits, within limits, in ", within,
                                         " of ", calls, " calls");
    if (lacking > 0) out += text("; unsupported: ", lacking);
    return out;
  }
  bool demands_bits(RowDemand demand) const {
    return demand == RowDemand::bits ||
           std::ranges::all_of(records_, [](const OpRecord& r) { return r.contract.row_bits; });
  }
  void make(const RowVariation& variation) {
    const OpSample sample = rows_.with(variation);
    PlacedSample placed(sample, device_);
    records_.clear();
    placed.run(kNaNBytes, records_);
    damage_ = placed.damage();
    made_ = placed.outputs();
    for (size_t i = 0; i < made_.size(); ++i) {
      if (made_[i].defined() && rows_.has_rows(i)) made_[i] = rows_of(made_[i], variation.judged);
    }
  }
  // Whether rows of the call that was just made are other ones than those of the whole call.
  bool differs(const RowVariation& variation) {
    const std::vector<int64_t> sources = variation.judged_sources();
    for (size_t i = 0; i < made_.size(); ++i) {
      if (!made_[i].defined() || !rows_.has_rows(i)) continue;
      const Tensor whole = rows_of(outputs_[i], sources);
      const std::optional<int64_t> at = first_difference(whole, made_[i]);
      if (!at) continue;
      difference_ =
          text('"', row_of(op_.op).operands.operands.at(i).name, "\" ",
               index_words(whole.shape(), *at, sources), " is ", number_words(value_at(whole, *at)),
               " in the whole call, ", number_words(value_at(made_[i], *at)));
      return true;
    }
    return false;
  }
  // "" or by how much the rows of the call that was just made are beyond their limits.
  std::string beyond(const RowVariation& variation) {
    const OpSample sample = rows_.with(variation.judged_sources());
    const Verdict verdict = combine(
        judge_op({op_.op, made_, sample.call.inputs(), again(sample.call)}, records_, oracle_));
    return verdict.status == Status::fail ? verdict.reason : "";
  }

  const OpCase& op_;
  const SampleRows rows_;
  const std::vector<Tensor>& outputs_;
  Device& device_;
  Device& oracle_;
  std::vector<OpRecord> records_;
  // Of the last call, the rows that are judged among its outputs.
  std::vector<Tensor> made_;
  std::string damage_, difference_;
};

}  // namespace

void try_relations(const OpCase& op, const std::vector<Tensor>& outputs, Device& device,
                   Device& oracle, RowDemand demand, RelationTally& tally,
                   CheckpointResult& result) {
  Relations(op, outputs, device, oracle).try_all(demand, tally, result);
}

std::string to_string(const RelationTally& tally) {
  std::string out = text("relations: ", tally.calls, " further calls of ", tally.tried,
                         " calls, not tried of ", tally.not_tried);
  const char* separator = "; other bits within limits: ";
  for (const auto& [op, calls] : tally.within) {
    out += text(separator, op, ' ', calls);
    separator = ", ";
  }
  return out;
}

}  // namespace plumb::harness
