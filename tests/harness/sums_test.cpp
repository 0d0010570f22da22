// Sums that are added several at a time have the bits of those that are added one after the other.
#include "harness/judge/sums.h"

#include "harness/judge/median.h"
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

TEST_CASE("a chunked sum is that of its chunks in order") {
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
