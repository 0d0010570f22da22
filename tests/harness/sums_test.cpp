// Sums that are added several at a time have the bits of those that are added one after the other.
#include "harness/judge/sums.h"

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

TEST_CASE("sums over groups are those of the elements in turn") {
  for (const Shape& shape : {Shape{2, 19, 3, 24}, Shape{1, 8, 2, 8}, Shape{3, 5, 1, 7}}) {
    const Layout layout = layout_of(shape, {"batch", "token", "head", "head_dim"});
    const std::vector<double> x = random_values(static_cast<size_t>(layout.size()));
    for (const Partition& family : error_families(layout)) {
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

}  // namespace plumb::harness
