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
  const Simd& simd;
  const Format& storage;
  const char* weight;
  int64_t channels;
  const RmsNormParams& params;

  // `get(begin, n, buffer)` gives a piece of the row in float32.
  template <class Get>
  void row(char* out, const Get& get) const {
    float buffer[kPiece], weights[kPiece];
    double squares = 0;
    for (int64_t begin = 0; begin < channels; begin += kPiece) {
      const int64_t n = std::min(kPiece, channels - begin);
      squares += simd.sum_squares(get(begin, n, buffer), n);
    }
    const double mean = squares / static_cast<double>(channels);
    const float factor = static_cast<float>(1 / std::sqrt(mean + params.eps));
    const float offset = static_cast<float>(params.weight_offset);
    for (int64_t begin = 0; begin < channels; begin += kPiece) {
      const int64_t n = std::min(kPiece, channels - begin);
      simd.scale(buffer, get(begin, n, buffer), factor, n);
      if (params.rounding == WeightRounding::before) storage.round(buffer, n);
      const float* w = storage.read(storage.at(weight, begin), weights, n);
      simd.weighted(buffer, buffer, w, offset, n);
      storage.write(storage.at(out, begin), buffer, n);
    }
  }
};

}  // namespace

void CpuOps::do_rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                         const RmsNormParams& params) {
  const Format storage = format("rms_norm", x);
  if (x.numel() == 0) return;
  const RmsNorm norm{*simd_, storage, storage.at(weight, 0), x.dim(-1), params};
  const RowOffsets to(out), from(x);
  pool_.for_each(from.count(), static_cast<double>(norm.channels), [&](int64_t row, int) {
    const char* source = storage.at(x, from[row]);
    norm.row(storage.at(static_cast<char*>(out.raw()), to[row]),
             [&](int64_t begin, int64_t n, float* buffer) {
               return storage.read(storage.at(source, begin), buffer, n);
             });
  });
}

void CpuOps::do_add_rms_norm(const Tensor& sum, const Tensor& out, const Tensor& x,
                             const Tensor& residual, const Tensor& weight,
                             const RmsNormParams& params) {
  const Format storage = format("add_rms_norm", x);
  if (x.numel() == 0) return;
  const RmsNorm norm{*simd_, storage, storage.at(weight, 0), x.dim(-1), params};
  const RowOffsets to(out), total(sum), a(x), b(residual);
  pool_.for_each(a.count(), 1.5 * static_cast<double>(norm.channels), [&](int64_t row, int) {
    const char* first = storage.at(x, a[row]);
    const char* second = storage.at(residual, b[row]);
    char* added = storage.at(static_cast<char*>(sum.raw()), total[row]);
    for (int64_t begin = 0; begin < norm.channels; begin += kPiece) {
      const int64_t n = std::min(kPiece, norm.channels - begin);
      float one[kPiece], two[kPiece];
      char* target = storage.at(added, begin);
      float* y = storage.target(target, one);
      simd_->add(y, storage.read(storage.at(first, begin), one, n),
                 storage.read(storage.at(second, begin), two, n), n);
      storage.write(target, y, n);
    }
    norm.row(storage.at(static_cast<char*>(out.raw()), to[row]),
             [&](int64_t begin, int64_t n, float* buffer) {
               return storage.read(storage.at(added, begin), buffer, n);
             });
  });
}

}  // namespace plumb::cpu
