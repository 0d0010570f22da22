// Rows of a softmax in which no score is left: NaN and zeros are right, and nothing else is.
#include "harness/referee/keyless_rows.h"

#include <algorithm>
#include <limits>

#include "harness/judge/verdict.h"
#include "tests/catch.h"
#include "tests/harness/judge_support.h"

namespace plumb::harness {
namespace {

using testing::case_of;
using testing::failed;
using testing::Made;
using testing::Random;
using testing::tensor_of;

constexpr int64_t kHeads = 2, kTokens = 4, kKeys = 8;

// Row of the last axis: rows of a layout are tokens, whose columns are heads and keys.
constexpr size_t kKeyless = 1 * kTokens + 2;  // head 1, token 2
constexpr size_t kOther = 0 * kTokens + 2;    // head 0 of the same token

struct Softmax {
  std::vector<double> scores, exact, rounded;

  // Of the row without a score transformers' result is NaN.
  explicit Softmax(DType dtype) {
    scores = Random(5).normals(kHeads * kTokens * kKeys);
    std::fill_n(scores.begin() + kKeyless * kKeys, kKeys, -kInf);
    scores[kOther * kKeys] = -kInf;  // one key is masked, the others are left
    for (size_t row = 0; row < scores.size() / kKeys; ++row) {
      double sum = 0;
      for (size_t i = row * kKeys; i < (row + 1) * kKeys; ++i) sum += std::exp(scores[i]);
      for (size_t i = row * kKeys; i < (row + 1) * kKeys; ++i) {
        exact.push_back(std::exp(scores[i]) / sum);
      }
    }
    rounded = testing::rounded(dtype, exact);
  }

  OutputCase with(DType dtype, size_t row, const std::vector<double>& values) const {
    std::vector<double> y = rounded;
    std::copy(values.begin(), values.end(), y.begin() + static_cast<std::ptrdiff_t>(row * kKeys));
    const Made made{{1, kHeads, kTokens, kKeys}, {"batch", "head", "token", "kv_token"}, dtype};
    OutputCase out = case_of(made, y, rounded, exact);
    out.evidence.model = out.evidence.reference;
    return out;
  }

  OutputVerdict judged(OutputCase output) const {
    set_keyless_rows_aside(output.evidence,
                           tensor_of(DType::f32, output.evidence.y.shape(), scores));
    return judge(output);
  }
};

const std::vector<double> kNaNs(kKeys, kNan), kZeros(kKeys, 0), kUniform(kKeys, 1.0 / kKeys);

}  // namespace

TEST_CASE("keyless rows: NaN and zeros are right, whatever the reference has") {
  for (const DType dtype : {DType::f16, DType::f32}) {
    Softmax softmax(dtype);
    CHECK(softmax.judged(softmax.with(dtype, kKeyless, kNaNs)).status == Status::pass);
    CHECK(softmax.judged(softmax.with(dtype, kKeyless, kZeros)).status == Status::pass);
    for (std::vector<double>* made : {&softmax.exact, &softmax.rounded}) {
      std::fill_n(made->begin() + kKeyless * kKeys, kKeys, 0.0);
    }
    CHECK(softmax.judged(softmax.with(dtype, kKeyless, kNaNs)).status == Status::pass);
    CHECK(softmax.judged(softmax.with(dtype, kKeyless, kZeros)).status == Status::pass);
  }
}

TEST_CASE("keyless rows: anything else there is wrong") {
  const Softmax softmax(DType::f16);
  std::vector<double> half = kZeros;
  half[3] = kNan;
  for (const auto& values : {kUniform, half, std::vector<double>(kKeys, kInf)}) {
    const OutputVerdict verdict = softmax.judged(softmax.with(DType::f16, kKeyless, values));
    CHECK(verdict.status == Status::fail);
    CHECK(failed(verdict, "classes"));
  }
}

TEST_CASE("keyless rows: a row with a key is judged") {
  const Softmax softmax(DType::f16);
  for (const auto& values : {kNaNs, kZeros, kUniform}) {
    OutputCase output = softmax.with(DType::f16, kOther, values);
    CHECK(softmax.judged(output).status == Status::fail);
  }
}

TEST_CASE("keyless rows: what was set aside before stays so") {
  const Softmax softmax(DType::f16);
  OutputCase output = softmax.with(DType::f16, 0, kUniform);  // token 0, head 0
  output.evidence.valid = tensor_of(DType::boolean, {1, kTokens}, {0, 1, 1, 1});
  output.evidence.valid_axes = {"batch", "token"};
  CHECK(softmax.judged(output).status == Status::pass);
  output.evidence.valid = tensor_of(DType::boolean, {1, kTokens}, {1, 0, 1, 1});
  CHECK(softmax.judged(output).status == Status::fail);
}

}  // namespace plumb::harness
