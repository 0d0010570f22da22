// RMSNorm (Zhang and Sennrich 2019) and its fusion with the residual addition before it.
//
// x [..., C], weight [C]. One unit of work is a row, read twice: for the sum of squares, then to be
// scaled. The sum has float32 lanes within a piece, float64 across pieces. Rounds where ops.h says:
// R(n) before the weight (LLaMA), or only after it (Gemma).
#include <cmath>

#include "kernels/cpu/cpu_ops.h"

namespace plumb::cpu {
namespace {

struct RmsNorm {
  const Format& storage;
  const char* weight;
  int64_t channels;
  const RmsNormParams& params;

  void row(char* out, const char* x) const {
    double squares = 0;
    for (int64_t begin = 0; begin < channels; begin += kPiece) {
      const int64_t n = std::min(kPiece, channels - begin);
      squares += storage.rows().sum_squares(storage.at(x, begin), n);
    }
    const double mean = squares / static_cast<double>(channels);
    const float factor = static_cast<float>(1 / std::sqrt(mean + params.eps));
    const float offset = static_cast<float>(params.weight_offset);
    storage.rows().rms_normalised[static_cast<size_t>(params.rounding)](out, x, factor, weight,
                                                                        offset, channels);
  }
};

}  // namespace

void CpuOps::do_rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                         const RmsNormParams& params) {
  const Format storage = format("rms_norm", x);
  if (x.numel() == 0) return;
  const RmsNorm norm{storage, storage.at(weight, 0), x.dim(-1), params};
  const RowOffsets to(out), from(x);
  pool_.for_each(from.count(), 0.5 * static_cast<double>(norm.channels), [&](int64_t row, int) {
    norm.row(storage.at(out.data<char>(), to[row]), storage.at(x, from[row]));
  });
}

void CpuOps::do_add_rms_norm(const Tensor& sum, const Tensor& out, const Tensor& x,
                             const Tensor& residual, const Tensor& weight,
                             const RmsNormParams& params) {
  const Format storage = format("add_rms_norm", x);
  if (x.numel() == 0) return;
  const RmsNorm norm{storage, storage.at(weight, 0), x.dim(-1), params};
  const RowOffsets to(out), total(sum), a(x), b(residual);
  pool_.for_each(a.count(), static_cast<double>(norm.channels), [&](int64_t row, int) {
    char* added = storage.at(sum.data<char>(), total[row]);
    storage.rows().add(added, storage.at(x, a[row]), storage.at(residual, b[row]), norm.channels);
    norm.row(storage.at(out.data<char>(), to[row]), added);
  });
}

}  // namespace plumb::cpu
