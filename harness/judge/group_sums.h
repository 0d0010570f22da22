// Sums over the groups of an output's error families, in an order that depends on its layout alone:
// the columns of a group in lanes, then the rows of a block, blocks, and parts of rows one after
// another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "harness/recording/layout.h"

namespace plumb::harness {

// How the rows of an output are divided. Families must be those of error_families(), or fewer.
struct RowPlan {
  enum class Rows { own, block, all };  // which rows a group has: one, some neighbours, all
  struct Family {
    Partition partition;
    Rows rows = Rows::own;
    std::vector<size_t>
        runs;  // first columns of neighbours in one group, and the number of columns
  };

  RowPlan(const Layout& layout, std::vector<Partition> of);

  size_t rows = 0, columns = 0;
  std::vector<Family> families;
  std::vector<uint8_t> ends_block;  // per row: the next one has groups of its own
  // First rows of what one thread sums, and the number of rows: at ends of blocks.
  std::vector<size_t> parts;
};

// The sums of one term per element.
class GroupSums {
 public:
  // The plan must outlive this.
  explicit GroupSums(const RowPlan& plan);

  // Adds the rows of one part, in order; parts may be added at the same time.
  class Part {
   public:
    Part(GroupSums& sums, size_t part);
    // terms of the columns [column, column + n) of a row, in the order of rows and columns.
    void add(size_t row, size_t column, const double* terms, size_t n);
    void end_row(size_t row);

   private:
    void add_runs(const RowPlan::Family& family, std::vector<double>& sums, size_t row,
                  size_t column, const double* terms, size_t n);

    GroupSums& sums_;
    const size_t part_;
    std::vector<double> block_;  // of every column
  };

  // One vector per family of the plan.
  std::vector<std::vector<double>> finish();

 private:
  const RowPlan& plan_;
  std::vector<std::vector<double>> sums_;
  std::vector<std::vector<std::vector<double>>> parts_;  // of families whose groups have all rows
};

}  // namespace plumb::harness
