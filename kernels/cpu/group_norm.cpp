// Group norm (Wu and He 2018), biased variance, one rounding at the end.
//
// x [B, C, *]. One unit of work is a group of a batch row, read three times, as a row of layer_norm
// is: mean, squared deviations from it, result. What of a channel is one block of memory in x and
// out is one row.
#include <cmath>

#include "kernels/cpu/cpu_ops.h"

namespace plumb::cpu {

void CpuOps::do_group_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                           const Tensor& bias, const GroupNormParams& params) {
  const Format storage = format("group_norm", x);
  if (x.numel() == 0) return;
  const int axes = std::min(common_block(std::array{&x, &out}).axes, x.rank() - 2);
  const RowOffsets from(x, axes), to(out, axes);
  const int64_t channels = x.dim(1), width = x.numel() / from.count();
  const int64_t rows_of_channel = from.count() / (x.dim(0) * channels);
  const int64_t count = from.count() / (x.dim(0) * params.groups);
  const auto terms = static_cast<double>(count * width);
  const auto of_channel = [&](const Tensor& t, int64_t channel, float otherwise) {
    float out = otherwise;
    if (t.defined()) storage.widen(&out, storage.at(t, channel), 1);
    return out;
  };
  pool_.for_each(x.dim(0) * params.groups, terms, [&](int64_t unit, int) {
    const int64_t first = unit * count;
    const RowFunctions& functions = storage.rows();
    const auto each_piece = [&](auto visit) {
      for (int64_t row = first; row < first + count; ++row) {
        for (int64_t at = 0; at < width; at += kPiece) visit(row, at, std::min(kPiece, width - at));
      }
    };
    const auto mean_of = [&](auto sum_of) {
      double sum = 0;
      each_piece([&](int64_t row, int64_t at, int64_t n) {
        sum += sum_of(storage.at(x, from[row] + at), n);
      });
      return sum / terms;
    };
    const auto mean = static_cast<float>(mean_of(functions.sum));
    const double variance = mean_of([&](const char* piece, int64_t n) {
      return functions.sum_squared_deviations(piece, mean, n);
    });
    const float factor = static_cast<float>(1 / std::sqrt(variance + params.eps));
    each_piece([&](int64_t row, int64_t at, int64_t n) {
      const int64_t channel = row / rows_of_channel % channels;
      const float times = of_channel(weight, channel, 1), added = of_channel(bias, channel, 0);
      float line[kPiece];
      storage.widen(line, storage.at(x, from[row] + at), n);
      for (int64_t i = 0; i < n; ++i) line[i] = (line[i] - mean) * factor * times + added;
      storage.write(storage.at(static_cast<char*>(out.raw()), to[row] + at), line, n);
    });
  });
}

}  // namespace plumb::cpu
