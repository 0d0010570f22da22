// LayerNorm (Ba et al. 2016), biased variance, one rounding at the end.
//
// x [..., C], weight [C], bias [C] or none. One unit of work is a row, read three times: mean,
// squared deviations from it (no cancellation as in E x^2 - (E x)^2), result.
#include <cmath>

#include "kernels/cpu/cpu_ops.h"

namespace plumb::cpu {

void CpuOps::do_layer_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                           const Tensor& bias, double eps) {
  const Format storage = format("layer_norm", x);
  if (x.numel() == 0) return;
  const int64_t channels = x.dim(-1);
  const char* w = storage.at(weight, 0);
  const char* b = bias.defined() ? storage.at(bias, 0) : nullptr;
  const RowOffsets to(out), from(x);
  pool_.for_each(from.count(), static_cast<double>(channels), [&](int64_t row, int) {
    const RowFunctions& rows = storage.rows();
    const char* source = storage.at(x, from[row]);
    const auto summed = [&](const auto& sum_of) {
      double sum = 0;
      for (int64_t begin = 0; begin < channels; begin += kPiece) {
        sum += sum_of(storage.at(source, begin), std::min(kPiece, channels - begin));
      }
      return sum / static_cast<double>(channels);
    };
    const auto mean = static_cast<float>(summed(rows.sum));
    const double variance = summed(
        [&](const char* piece, int64_t n) { return rows.sum_squared_deviations(piece, mean, n); });
    const float factor = static_cast<float>(1 / std::sqrt(variance + eps));
    rows.normalised(storage.at(out.data<char>(), to[row]), source, mean, factor, w, b, channels);
  });
}

}  // namespace plumb::cpu
