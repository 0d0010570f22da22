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
  const RowOffsets to(out), from(x);
  pool_.for_each(from.count(), 1.5 * static_cast<double>(channels), [&](int64_t row, int) {
    const char* source = storage.at(x, from[row]);
    char* target = storage.at(static_cast<char*>(out.raw()), to[row]);
    float line[kLine], buffer[kPiece], weights[kPiece], biases[kPiece];
    const float* whole = channels <= kLine ? storage.read(source, line, channels) : nullptr;
    const auto pieces = [&](const auto& visit) {
      for (int64_t begin = 0; begin < channels; begin += kPiece) {
        const int64_t n = std::min(kPiece, channels - begin);
        visit(begin, n, whole ? whole + begin : storage.read(storage.at(source, begin), buffer, n));
      }
    };
    double sum = 0, squares = 0;
    pieces([&](int64_t, int64_t n, const float* piece) { sum += simd_->sum(piece, n); });
    const float mean = static_cast<float>(sum / static_cast<double>(channels));
    pieces([&](int64_t, int64_t n, const float* piece) {
      squares += simd_->sum_squared_deviations(piece, mean, n);
    });
    const double variance = squares / static_cast<double>(channels);
    const float factor = static_cast<float>(1 / std::sqrt(variance + eps));
    pieces([&](int64_t begin, int64_t n, const float* piece) {
      const float* w = storage.read(storage.at(weight, begin), weights, n);
      const float* b = bias.defined() ? storage.read(storage.at(bias, begin), biases, n) : nullptr;
      simd_->normalised(buffer, piece, mean, factor, w, b, n);
      storage.write(storage.at(target, begin), buffer, n);
    });
  });
}

}  // namespace plumb::cpu
