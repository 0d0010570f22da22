// Sums over groups: those of the elements in order, with the same bits on any number of threads.
#include "harness/judge/group_sums.h"

#include "harness/judge/error_segments.h"
#include "harness/judge/lanes.h"
#include "tests/catch.h"
#include "tests/harness/judge_support.h"

namespace plumb::harness {
namespace {

const std::vector<std::string> kAxes = {"batch", "token", "head", "head_dim"};

using Sums = std::vector<std::vector<double>>;

Sums sums_of(const RowPlan& plan, const std::vector<double>& terms) {
  GroupSums sums(plan);
  const auto add_part = [&](size_t part) {
    GroupSums::Part rows(sums, part);
    for_segments(
        plan, part,
        [&](size_t row, size_t column, size_t n) {
          rows.add(row, column, terms.data() + row * plan.columns + column, n);
        },
        [&](size_t row) { rows.end_row(row); });
    return true;
  };
  of_row_parts(plan, add_part);
  return sums.finish();
}

Sums in_turn(const std::vector<Partition>& families, const std::vector<double>& terms) {
  Sums out;
  for (const Partition& family : families) {
    out.emplace_back(static_cast<size_t>(family.groups), 0.0);
    size_t i = 0;
    for (const int64_t row : family.row_part) {
      for (const int64_t column : family.column_part) {
        out.back()[static_cast<size_t>(row + column)] += terms[i++];
      }
    }
  }
  return out;
}

}  // namespace

TEST_CASE("sums over groups are those of the elements in order") {
  const Shape large{2, 259, 4, 512};  // several parts
  const Shape wide{1, 3, 2, 3000};    // groups of several segments
  const Layout some = layout_of({2, 5, 3, 50}, kAxes, {0, 1, 9, 10, 300});
  std::vector<Layout> layouts = {some};
  for (const Shape& shape : {Shape{2, 19, 3, 24}, Shape{1, 8, 2, 8}, Shape{3, 5, 1, 7},
                             Shape{1, 1, 3, 700}, Shape{0, 4, 1, 8}, large, wide}) {
    layouts.push_back(layout_of(shape, kAxes));
  }
  layouts.push_back(layout_of({70, 40}, {"batch", "channel"}));
  layouts.push_back(layout_of({9, 30, 2}, {"token", "head_dim", "head"}));  // groups of one column
  testing::Random random(7);
  for (const Layout& layout : layouts) {
    const std::vector<double> terms = random.normals(layout.size());
    const std::vector<Partition> families = error_families(layout);
    const RowPlan plan(layout, families);
    const Sums alone = sums_of(plan, terms), expected = in_turn(families, terms);
    for (size_t k = 0; k < families.size(); ++k) {
      INFO(families[k].name << " of " << layout.shape);
      REQUIRE(alone[k].size() == expected[k].size());
      for (size_t g = 0; g < alone[k].size(); ++g) {
        if (std::fabs(alone[k][g] - expected[k][g]) > 1e-10) FAIL("group " << g);
      }
    }
    ThreadPool pool(3);
    const LoopThreads lent(&pool);
    CHECK(sums_of(plan, terms) == alone);
  }
}

TEST_CASE("parts of rows have whole blocks") {
  const Layout layout = layout_of({2, 100, 2, 1024}, kAxes);
  const RowPlan plan(layout, error_families(layout));
  REQUIRE(plan.parts.front() == 0);
  REQUIRE(plan.parts.back() == 200);
  CHECK(plan.parts.size() == 3);  // at least 128 rows, to the end of a tile of the second entry
  for (const size_t row : plan.parts) CHECK(row % 100 % 8 == 0);
}

TEST_CASE("lanes have every term, and the largest") {
  testing::Random random(8);
  for (const size_t n : {0, 1, 7, 8, 9, 16, 511, 512}) {
    INFO(n);
    const std::vector<double> x = random.normals(static_cast<int64_t>(n));
    double sum = 0, largest = 0;
    for (const double value : x) {
      sum += value;
      largest = std::max(largest, value);
    }
    CHECK(lane_sum(n, [&](size_t i) { return x[i]; }) == Approx(sum).margin(1e-12));
    CHECK(lane_max(n, [&](size_t i) { return x[i]; }) == largest);
  }
}

}  // namespace plumb::harness
