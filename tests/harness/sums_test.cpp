// Sums that are added several at a time have the bits of those that are added one after the other.
#include "harness/judge/sums.h"

#include "harness/judge/median.h"
#include "harness/recording/layout.h"
#include "tests/catch.h"
#include "tests/harness/judge_support.h"

namespace plumb::harness {
namespace {

std::vector<double> random_values(size_t count) {
  testing::Random random(7);
  std::vector<double> out(count);
  for (double& x : out) x = random.normal();
  return out;
}

double in_turn(const std::vector<double>& x) {
  double total = 0;
  for (size_t begin = 0; begin < x.size(); begin += 4096) {
    double partial = 0;
    for (size_t i = begin; i < std::min(begin + 4096, x.size()); ++i) partial += x[i];
    total += partial;
  }
  return total;
}

}  // namespace

TEST_CASE("a chunked sum is that of its chunks in turn") {
  for (const size_t n : {0, 1, 4095, 4097, 8 * 4096, 8 * 4096 + 1, 100003}) {
    INFO(n);
    const std::vector<double> x = random_values(n);
    CHECK(chunked_sum(n, [&](size_t i) { return x[i]; }) == in_turn(x));
  }
}

TEST_CASE("a chunked sum is the same on any number of threads") {
  const size_t n = (size_t{1} << 21) + 5000;
  const std::vector<double> x = random_values(n);
  for (const int threads : {2, 3, 7}) {
    ThreadPool pool(threads);
    const LoopThreads lent(&pool);
    CHECK(chunked_sum(n, [&](size_t i) { return x[i]; }) == in_turn(x));
  }
}

TEST_CASE("sums over groups are those of the elements in turn") {
  const int threads = GENERATE(1, 3);
  const Shape large{2, 259, 4, 512};  // its loops are shared
  ThreadPool pool(threads);
  const LoopThreads lent(threads > 1 ? &pool : nullptr);
  for (const Shape& shape : {Shape{2, 19, 3, 24}, Shape{1, 8, 2, 8}, Shape{3, 5, 1, 7}, large}) {
    const Layout layout = layout_of(shape, {"batch", "token", "head", "head_dim"});
    const std::vector<double> x = random_values(static_cast<size_t>(layout.size()));
    std::vector<Partition> partitions = error_families(layout);
    for (int axis = 0; axis < shape.rank(); ++axis) partitions.push_back(along_axis(layout, axis));
    for (const Partition& family : partitions) {
      INFO(family.name << " of " << shape);
      std::vector<double> together(static_cast<size_t>(family.groups)), in_order(together);
      add_groups(together, family, [&](size_t i) { return x[i]; });
      size_t i = 0;
      for (const int64_t row : family.row_part) {
        for (const int64_t column : family.column_part) {
          in_order[static_cast<size_t>(row + column)] += x[i++];
        }
      }
      CHECK(together == in_order);
    }
  }
}

TEST_CASE("rows are parted where none behind has a group of one before") {
  const auto borders = [](const Shape& shape, int axis) {
    return row_borders(along_axis(layout_of(shape, {"batch", "token", "channel"}), axis));
  };
  using Rows = std::vector<size_t>;
  CHECK(borders({1, 3, 2}, 1) == Rows{0, 1, 2, 3});
  CHECK(borders({2, 3, 2}, 0) == Rows{0, 3, 6});
  CHECK(borders({2, 3, 2}, 1) == Rows{0, 6});  // row 3 is token 0 again
  CHECK(borders({2, 3, 2}, 2) == Rows{0, 6});
}

TEST_CASE("the middle of many values is that of the sorted ones") {
  const int threads = GENERATE(1, 3);
  ThreadPool pool(threads);
  const LoopThreads lent(threads > 1 ? &pool : nullptr);
  for (const size_t n : {0, 1, 2, 5, 1000, (1 << 20) + 3}) {
    INFO(n);
    std::vector<double> x = random_values(n);
    for (double& value : x) value = std::fabs(value);
    if (n > 4) x[1] = x[3] = 0, x[2] = std::numeric_limits<double>::infinity();
    std::vector<double> sorted = x;
    std::sort(sorted.begin(), sorted.end());
    CHECK(upper_median(n, [&](size_t i) { return x[i]; }) == (n ? sorted[n / 2] : 0));
    if (n < 6) continue;
    x[5] = std::nan("");  // is left out
    sorted.clear();
    std::copy_if(x.begin(), x.end(), std::back_inserter(sorted), [](double v) { return v == v; });
    std::sort(sorted.begin(), sorted.end());
    CHECK(upper_median(n, [&](size_t i) { return x[i]; }) == sorted[sorted.size() / 2]);
  }
}

}  // namespace plumb::harness
