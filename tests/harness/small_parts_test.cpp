// What the count of differing bits does not see: an element far off, a crowd in one channel, and
// errors that are coherent over all rows of a sampled output.
#include "harness/judge/small_parts.h"

#include "harness/judge/conformance.h"
#include "harness/judge/spread_limit.h"
#include "tests/catch.h"
#include "tests/harness/judge_support.h"

namespace plumb::harness {
namespace {

using testing::case_of;
using testing::failed;
using testing::gate;
using testing::made;
using testing::Random;
using testing::rounded;
using testing::tensor_of;

constexpr int64_t kPartRows = 16, kPartColumns = 256;

// A norm-like output in bf16 whose model is its reference; `change` edits y.
template <class Change>
OutputCase norm_like(Change change) {
  const std::vector<double> o = Random(5).normals(kPartRows * kPartColumns);
  const std::vector<double> r = rounded(DType::bf16, o);
  std::vector<double> y = r;
  change(y);
  OutputCase c =
      case_of(made(DType::bf16, {kPartRows, kPartColumns}), rounded(DType::bf16, y), r, o);
  c.evidence.model = c.evidence.reference;
  c.rule.leaf = true;
  return c;
}

void high_channel(std::vector<double>& y, int64_t channel, double factor) {
  for (size_t i = static_cast<size_t>(channel); i < y.size(); i += kPartColumns) y[i] *= factor;
}

OutputCase with_small_zeroed() {
  return norm_like([](std::vector<double>& y) {
    for (double& value : y) value = std::fabs(value) < 0.002 ? 0 : value;
  });
}

}  // namespace

TEST_CASE("few small values that are zeroed are far off in the last place", "[small]") {
  const OutputVerdict v = judge(with_small_zeroed());
  CHECK(v.status == Status::fail);
  CHECK(failed(v, "ulp"));
  CHECK(gate(v, "conformance").passed);
  CHECK(v.reason.find("units in the last place off") != std::string::npos);
  OutputCase c = with_small_zeroed();
  SECTION("not where a rounded value feeds a sum: there they may cancel") {
    c.rule.leaf = false;
    CHECK_FALSE(failed(judge(c), "ulp"));
  }
  SECTION("nor where other roundings move an element as far") {
    c.rule.others = 128;
    CHECK_FALSE(failed(judge(c), "ulp"));
  }
  SECTION("nor where simulated kernels are as far off") {
    c.allowance.simulate = [&](int count) {
      return std::vector<Tensor>(static_cast<size_t>(count), c.evidence.y);
    };
    CHECK_FALSE(failed(judge(c), "ulp"));
  }
  SECTION("and what the reference does not follow is not demanded") {
    c.evidence.reference = c.evidence.y;
    CHECK_FALSE(failed(judge(c), "ulp"));
  }
}

TEST_CASE("a channel whose bits all differ is a crowd", "[small]") {
  const OutputVerdict v = judge(norm_like([](auto& y) { high_channel(y, 7, 1.01); }));
  CHECK(failed(v, "channel bits"));
  CHECK(gate(v, "channel bits").where.find("channel 7") != std::string::npos);
  SECTION("flips here and there are none") {
    const OutputVerdict right = judge(norm_like([](std::vector<double>& y) {
      for (size_t i = 0; i < y.size(); i += 331) y[i] *= 1.005;
    }));
    CHECK(right.status == Status::pass);
    CHECK(gate(right, "channel bits").statistic == 1);
  }
  SECTION("nor are tokens that are alike") {
    OutputCase c = norm_like([](std::vector<double>&) {});
    const auto repeat = [](const Tensor& t) {
      for (int64_t row = 1; row < kPartRows; ++row) {
        std::copy_n(t.data<char>(), kPartColumns * size_of(t.dtype()),
                    t.data<char>() + row * kPartColumns * size_of(t.dtype()));
      }
    };
    for (const Tensor& t : {c.evidence.reference, c.evidence.delta}) repeat(t);
    c.evidence.model =
        tensor_of(DType::bf16, c.evidence.y.shape(), testing::values_of(c.evidence.reference));
    c.evidence.y =
        tensor_of(DType::bf16, c.evidence.y.shape(), testing::values_of(c.evidence.reference));
    const OutputCase same = c;
    std::vector<double> y = testing::values_of(c.evidence.y);
    high_channel(y, 7, 1 + 0x1p-8 + 0x1p-16);
    c.evidence.y = tensor_of(DType::bf16, c.evidence.y.shape(), y);
    CHECK_FALSE(failed(judge(c), "channel bits"));
    CHECK(judge(same).status == Status::pass);
  }
}

TEST_CASE("the crowd that a right kernel stays below", "[small]") {
  CHECK(std::isinf(crowd_limit(1, 64, 0.01)));
  CHECK(crowd_limit(48, 64, 0.003) < 12);
  CHECK(crowd_limit(4096, 64, 0.003) < 4096 * 4 * 0.003 * 3);
  CHECK(crowd_limit(4096, 64, 0.003) > 4096 * 3 * 0.003);
  CHECK(std::isinf(crowd_limit(48, 64, 0.5)));
  CHECK(part_limit({"ulp", 1, 0.5, 2}) == 6);
  CHECK(part_limit({"ulp", 0, 0, 0}) == 0);
}

}  // namespace plumb::harness
