// The matrix unit's functions, on the processor's own where it has one and on a model of it.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/matrix_gemm.h"
#include "tests/kernels/amx_model.h"
#include "tests/kernels/support.h"

namespace plumb::cpu {
namespace {

constexpr size_t kSide = kMatrixSide, kStep = kMatrixStep;

std::vector<const Simd*> with_matrix_unit() {
  std::vector<const Simd*> out;
  if (amx_model()) out.push_back(amx_model());
  if (usable_simds().back()->matrix) out.push_back(usable_simds().back());
  return out;
}

struct alignas(64) Line {
  char bytes[64];
};
// Memory at addresses divisible by 64, as packed operands are.
template <class T>
class Aligned {
 public:
  explicit Aligned(size_t n) : lines_((n * sizeof(T) + 63) / 64) {}
  T* data() { return reinterpret_cast<T*>(lines_.data()); }
  T& operator[](size_t i) { return data()[i]; }

 private:
  std::vector<Line> lines_;
};

// Small integers, and operands of them as the matrix unit takes them.
struct Operands {
  int64_t steps;
  std::vector<float> a, b;  // [kSide, k], [k, kSide]
  Aligned<uint16_t> rows;
  Aligned<uint32_t> words;

  explicit Operands(int64_t n)
      : steps(n),
        a(kSide * k()),
        b(k() * kSide),
        rows(kSide * k() + 1),
        words(k() * kSide / 2 + 1) {
    for (size_t i = 0; i < a.size(); ++i) {
      a[i] = static_cast<float>(static_cast<int>(i * 5 % 11) - 5);
      b[i] = static_cast<float>(static_cast<int>(i * 3 % 7) - 2);
    }
    for (size_t i = 0; i < kSide; ++i) {
      for (size_t p = 0; p < k(); ++p) rows[packed(i, p)] = f32_to_bf16(a[i * k() + p]);
    }
    for (size_t p = 0; p < k(); ++p) {
      for (size_t j = 0; j < kSide; ++j) {
        const uint32_t code = f32_to_bf16(b[p * kSide + j]);
        uint32_t& word = words[p / 2 * kSide + j];
        word = p % 2 ? word | code << 16 : code;
      }
    }
  }
  size_t k() const { return static_cast<size_t>(steps) * kStep; }
  size_t packed(size_t i, size_t p) const {
    return p / kStep * kSide * kStep + i * kStep + p % kStep;
  }
  float sum(size_t i, size_t j) const {
    float sum = 0;
    for (size_t p = 0; p < k(); ++p) sum += a[i * k() + p] * b[p * kSide + j];
    return sum;
  }
  MatrixTile tile(float* sums, int64_t stride) {
    MatrixTile tile{};
    tile.steps = steps;
    tile.a = reinterpret_cast<const char*>(rows.data());
    tile.a_stride = 2 * kMatrixStep;
    tile.a_step = kMatrixStepBytes;
    tile.b = words.data();
    tile.sums = sums;
    tile.sums_stride = stride;
    tile.ahead[0] = tile.ahead[1] = tile.a;
    return tile;
  }
};

TEST_CASE("matrix unit: sums, accumulated sums, and rows read where they are") {
  for (const Simd* simd : with_matrix_unit()) {
    INFO(simd->name);
    Operands x(GENERATE(0, 1, 3));
    constexpr size_t kStride = kSide + 5;
    std::vector<float> sums(kSide * kStride, 100.0f);
    MatrixTile tile = x.tile(sums.data(), kStride);
    const MatrixUse use(*simd->matrix);
    std::vector<uint16_t> strided(kSide * (x.k() + 3) + 1);
    for (const float times : {1.0f, 2.0f, 3.0f}) {
      tile.accumulate = times > 1;
      if (times > 2) {
        for (size_t i = 0; i < kSide * x.k(); ++i) {
          strided[i / x.k() * (x.k() + 3) + i % x.k()] = f32_to_bf16(x.a[i]);
        }
        tile.a = reinterpret_cast<const char*>(strided.data());
        tile.a_stride = static_cast<int64_t>(2 * (x.k() + 3));
        tile.a_step = 2 * kMatrixStep;
      }
      simd->matrix->multiply(tile);
      for (size_t i = 0; i < kSide; ++i) {
        for (size_t j = 0; j < kStride; ++j) {
          REQUIRE(sums[i * kStride + j] == (j < kSide ? times * x.sum(i, j) : 100));
        }
      }
    }
  }
}

TEST_CASE("matrix unit: rounded rows and columns of any number, with a bias") {
  for (const Simd* simd : with_matrix_unit()) {
    INFO(simd->name);
    Operands x(2);
    std::vector<float> sums(kSide * kSide, 50.0f);
    MatrixTile tile = x.tile(sums.data(), kMatrixSide);
    tile.accumulate = GENERATE(false, true);
    tile.transposed = GENERATE(false, true);
    tile.rows = GENERATE(1, 16, 17, 32);
    tile.columns = GENERATE(1, 15, 16, 31, 32);
    std::vector<float> bias;
    if (tile.transposed && GENERATE(false, true)) {
      for (size_t i = 0; i < kSide; ++i) bias.push_back(0.37f * static_cast<float>(i) - 3);
      bias[3] = std::nanf("");
      tile.bias = bias.data();
    }
    constexpr size_t kStride = kSide + 7;
    std::vector<uint16_t> out(kSide * kStride, 0x5555);
    tile.out = out.data();
    tile.out_stride = kStride;
    const MatrixUse use(*simd->matrix);
    simd->matrix->multiply(tile);
    REQUIRE(sums == std::vector<float>(kSide * kSide, 50.0f));
    for (size_t r = 0; r < kSide; ++r) {
      for (size_t c = 0; c < kStride; ++c) {
        const size_t i = tile.transposed ? c : r, j = tile.transposed ? r : c;
        const uint16_t code = out[r * kStride + c];
        if (static_cast<int64_t>(i) >= tile.rows || static_cast<int64_t>(j) >= tile.columns) {
          REQUIRE(code == 0x5555);
          continue;
        }
        const float sum = (tile.accumulate ? 50 : 0) + x.sum(i, j) + (tile.bias ? bias[i] : 0);
        if (std::isnan(sum)) REQUIRE(std::isnan(bf16_to_f32(code)));
        else REQUIRE(code == f32_to_bf16(sum));
      }
    }
  }
}

TEST_CASE("matrix unit: a bias alone may be subnormal") {
  for (const Simd* simd : with_matrix_unit()) {
    Operands x(0);
    MatrixTile tile = x.tile(nullptr, 0);
    const std::vector<float> bias(kSide, 0x3p-130f);
    uint16_t out = 0;
    tile.transposed = true;
    tile.bias = bias.data();
    tile.rows = tile.columns = 1;
    tile.out = &out;
    const MatrixUse use(*simd->matrix);
    simd->matrix->multiply(tile);
    REQUIRE(bf16_to_f32(out) == 0x3p-130f);
  }
}

TEST_CASE("matrix unit: packed rows and interleaved ones, zeros behind them") {
  for (const Simd* simd : with_matrix_unit()) {
    INFO(simd->name);
    std::vector<uint16_t> row(100), other(100);
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = static_cast<uint16_t>(i + 1);
      other[i] = static_cast<uint16_t>(1000 + i);
    }
    const int64_t elements = GENERATE(0, 1, 31, 32, 33, 64, 90);
    constexpr int64_t kSteps = 3;
    Aligned<uint16_t> packed(kSteps * kSide * kStep);
    std::fill_n(packed.data(), kSteps * kSide * kStep, uint16_t{0x5555});
    simd->matrix->copy_row(reinterpret_cast<char*>(packed.data()),
                           reinterpret_cast<const char*>(row.data() + 1), elements, kSteps);
    for (size_t i = 0; i < kSteps * kSide * kStep; ++i) {
      const size_t p = i / (kSide * kStep) * kStep + i % kStep;
      const uint16_t expected = static_cast<int64_t>(p) < elements ? row[p + 1] : 0;
      REQUIRE(packed[i] == (i / kStep % kSide ? 0x5555 : expected));
    }
    const int64_t columns = GENERATE(1, 15, 16, 17, 32);
    Aligned<uint32_t> words(kSide);
    for (const bool has_odd : {true, false}) {
      simd->matrix->interleave(words.data(), row.data(), has_odd ? other.data() : nullptr, columns);
      for (size_t j = 0; j < kSide; ++j) {
        const uint32_t odd = has_odd ? other[j] : 0;
        REQUIRE(words[j] == (static_cast<int64_t>(j) < columns ? row[j] | odd << 16 : 0));
      }
    }
  }
}

TEST_CASE("matrix unit: weights in two halves, zeros behind them") {
  for (const Simd* simd : with_matrix_unit()) {
    INFO(simd->name);
    constexpr int64_t kSteps = 4;
    const int64_t n = GENERATE(0, 1, 15, 16, 17, 32, 47, 48, 64, 100);
    std::vector<float> scores(128, 1e30f);  // the weights behind n would be infinite
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      scores[i] = 2 - 0.37f * static_cast<float>(i % 90);
    }
    if (n > 20) scores[20] = -std::numeric_limits<float>::infinity();
    Aligned<uint16_t> high(kSteps * kSide * kStep), low(kSteps * kSide * kStep);
    for (auto* half : {&high, &low}) std::fill_n(half->data(), kSteps * kSide * kStep, 0x3f80);
    const float sum =
        simd->matrix->weigh(reinterpret_cast<char*>(high.data()),
                            reinterpret_cast<char*>(low.data()), scores.data(), 2, 4, n, kSteps);
    double total = 0;
    for (size_t i = 0; i < static_cast<size_t>(kSteps * kMatrixStep); ++i) {
      const size_t at = i / kStep * kSide * kStep + i % kStep;
      const double expected = static_cast<int64_t>(i) < n ? std::exp(2.0 * scores[i] - 4) : 0;
      const float upper = bf16_to_f32(high[at]), lower = bf16_to_f32(low[at]);
      INFO("weight " << i << ": " << upper << " + " << lower << ", not " << expected);
      REQUIRE(std::fabs(upper - expected) <= 0x1.1p-8 * expected);
      // Each half loses at most 2^-9 of itself; score and exp lose some ulp of float32.
      REQUIRE(std::fabs(double{upper} + lower - expected) <= (0x1p-17 + 80 * kU32) * expected);
      total += expected;
    }
    REQUIRE(std::fabs(sum - total) <= 80 * kU32 * total);
  }
}

TEST_CASE("matrix unit: rows with an infinity or a NaN are not finite") {
  for (const Simd* simd : with_matrix_unit()) {
    const int64_t n = GENERATE(1, 31, 32, 33, 64, 70);
    std::vector<uint16_t> row(static_cast<size_t>(n) + 1, 0xff7f);  // the lowest finite number
    for (const uint16_t code : {uint16_t{0x7f80}, uint16_t{0xff80}, uint16_t{0x7fc1}}) {
      row.back() = code;  // behind the row
      REQUIRE(simd->matrix->finite(row.data(), n));
      for (const size_t at : {size_t{0}, static_cast<size_t>(n - 1)}) {
        std::vector<uint16_t> other = row;
        other[at] = code;
        REQUIRE_FALSE(simd->matrix->finite(other.data(), n));
      }
    }
  }
}

}  // namespace
}  // namespace plumb::cpu
