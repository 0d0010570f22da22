#include "harness/recording/sampled.h"

#include <cstring>

#include "harness/io/generator.h"
#include "kernels/core/error.h"

namespace plumb::harness {

std::string words_of(const RowSample& sample) {
  return text(sample.tokens.size(), " of ", sample.of, " rows",
              sample.comparable ? " and a sketch of all" : ", all of them finite");
}

Tensor take_rows(const Tensor& t, int axis, const std::vector<int64_t>& indices) {
  require(t.contiguous(), "take_rows", "the tensor is not contiguous");
  Shape shape = t.shape();
  shape.set(axis, static_cast<int64_t>(indices.size()));
  const Tensor out = host_tensor(t.dtype(), shape);
  int64_t outer = 1;
  for (int i = 0; i < axis; ++i) outer *= t.dim(i);
  int64_t inner = size_of(t.dtype());
  for (int i = axis + 1; i < t.rank(); ++i) inner *= t.dim(i);
  char* to = out.data<char>();
  for (int64_t i = 0; i < outer; ++i) {
    for (const int64_t index : indices) {
      std::memcpy(to, t.data<char>() + (i * t.dim(axis) + index) * inner,
                  static_cast<size_t>(inner));
      to += inner;
    }
  }
  return out;
}

std::vector<double> sketch_rows(const std::vector<double>& matrix, int64_t rows, int64_t columns) {
  constexpr auto kWidth = static_cast<size_t>(kSketchWidth);
  const auto width = static_cast<size_t>(columns);
  std::vector<std::array<double, kWidth>> signs(width);
  for (size_t c = 0; c < width; ++c) {
    const uint64_t bits = splitmix64(0, c);
    for (size_t j = 0; j < kWidth; ++j) signs[c][j] = bits >> j & 1 ? -1 : 1;
  }
  std::vector<double> out(static_cast<size_t>(rows) * kWidth, 0);
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    double* sums = &out[row * kWidth];
    const double* x = &matrix[row * width];
    for (size_t c = 0; c < width; ++c) {
      for (size_t j = 0; j < kWidth; ++j) sums[j] += signs[c][j] * x[c];
    }
  }
  return out;
}

}  // namespace plumb::harness
