#include "harness/judge/group_sums.h"

#include <algorithm>
#include <functional>

#include "harness/judge/lanes.h"

namespace plumb::harness {
namespace {

constexpr size_t kPartElements = size_t{1} << 18;
constexpr size_t kPartRows = 16;  // at least: a part has sums of its own of every column

RowPlan::Rows rows_of(const Partition& family) {
  const auto& rows = family.row_part;
  if (rows.size() < 2 || std::adjacent_find(rows.begin(), rows.end()) == rows.end()) {
    return RowPlan::Rows::own;
  }
  const bool same =
      std::adjacent_find(rows.begin(), rows.end(), std::not_equal_to<>()) == rows.end();
  return same ? RowPlan::Rows::all : RowPlan::Rows::block;
}

std::vector<size_t> runs_of(const std::vector<int64_t>& columns) {
  std::vector<size_t> out;
  for (size_t c = 0; c < columns.size(); ++c) {
    if (c == 0 || columns[c] != columns[c - 1]) out.push_back(c);
  }
  out.push_back(columns.size());
  return out;
}

}  // namespace

RowPlan::RowPlan(const Layout& layout, std::vector<Partition> of)
    : rows(static_cast<size_t>(layout.rows)),
      columns(static_cast<size_t>(layout.columns)),
      ends_block(rows, 0) {
  for (Partition& partition : of) {
    families.push_back({{}, rows_of(partition), runs_of(partition.column_part)});
    families.back().partition = std::move(partition);
    if (families.back().rows != Rows::block) continue;
    const std::vector<int64_t>& groups = families.back().partition.row_part;
    for (size_t row = 1; row < rows; ++row) {
      if (groups[row] != groups[row - 1]) ends_block[row - 1] = 1;
    }
  }
  const size_t least = std::max(kPartRows, kPartElements / std::max<size_t>(columns, 1));
  const bool blocks = std::any_of(families.begin(), families.end(),
                                  [](const Family& f) { return f.rows == Rows::block; });
  parts.push_back(0);
  for (size_t row = 0; row < rows; ++row) {
    const bool may_end = !blocks || ends_block[row];
    if (row + 1 < rows && may_end && row + 1 - parts.back() >= least) parts.push_back(row + 1);
  }
  if (rows > 0) parts.push_back(rows);
  for (const size_t part : parts) {
    if (part > 0) ends_block[part - 1] = 1;
  }
}

GroupSums::GroupSums(const RowPlan& plan) : plan_(plan), parts_(plan.parts.size() - 1) {
  for (const RowPlan::Family& family : plan.families) {
    sums_.emplace_back(static_cast<size_t>(family.partition.groups), 0.0);
  }
}

GroupSums::Part::Part(GroupSums& sums, size_t part) : sums_(sums), part_(part) {
  bool blocks = false;
  auto& own = sums_.parts_[part];
  for (const RowPlan::Family& family : sums_.plan_.families) {
    blocks = blocks || family.rows != RowPlan::Rows::own;
    const bool shared = family.rows == RowPlan::Rows::all;
    own.emplace_back(shared ? static_cast<size_t>(family.partition.groups) : 0, 0.0);
  }
  if (blocks) block_.assign(sums_.plan_.columns, 0);
}

void GroupSums::Part::add(size_t row, size_t column, const double* terms, size_t n) {
  if (!block_.empty()) {
    double* sums = block_.data() + column;
    for (size_t i = 0; i < n; ++i) sums[i] += terms[i];
  }
  for (size_t k = 0; k < sums_.sums_.size(); ++k) {
    const RowPlan::Family& family = sums_.plan_.families[k];
    if (family.rows == RowPlan::Rows::own) {
      add_runs(family, sums_.sums_[k], row, column, terms, n);
    }
  }
}

void GroupSums::Part::add_runs(const RowPlan::Family& family, std::vector<double>& sums, size_t row,
                               size_t column, const double* terms, size_t n) {
  const auto& runs = family.runs;
  const size_t end = column + n;
  auto run = std::upper_bound(runs.begin(), runs.end(), column) - 1;
  for (size_t begin = column; begin < end; ++run) {
    const size_t stop = std::min(end, *(run + 1));
    const int64_t group = family.partition.row_part[row] + family.partition.column_part[begin];
    const double* first = terms + (begin - column);
    sums[static_cast<size_t>(group)] += lane_sum(stop - begin, [&](size_t i) { return first[i]; });
    begin = stop;
  }
}

void GroupSums::Part::end_row(size_t row) {
  if (block_.empty() || !sums_.plan_.ends_block[row]) return;
  for (size_t k = 0; k < sums_.sums_.size(); ++k) {
    const RowPlan::Family& family = sums_.plan_.families[k];
    if (family.rows == RowPlan::Rows::own) continue;
    const bool shared = family.rows == RowPlan::Rows::all;
    double* sums = shared ? sums_.parts_[part_][k].data() : sums_.sums_[k].data();
    sums += family.partition.row_part[row];
    const std::vector<int64_t>& groups = family.partition.column_part;
    for (size_t c = 0; c < block_.size(); ++c) sums[groups[c]] += block_[c];
  }
  std::fill(block_.begin(), block_.end(), 0.0);
}

std::vector<std::vector<double>> GroupSums::finish() {
  for (const auto& part : parts_) {
    for (size_t k = 0; k < part.size(); ++k) {
      for (size_t g = 0; g < part[k].size(); ++g) sums_[k][g] += part[k][g];
    }
  }
  return std::move(sums_);
}

}  // namespace plumb::harness
