// Softmax over the last axis: R(exp(x - max) / sum). A row of -inf gives zeros.
//
// One unit of work is a row: maximum, sum of exponentials, result. The exponentials are computed
// twice rather than kept, which needs no scratch for rows of any length.
#include <limits>

#include "kernels/cpu/cpu_ops.h"

namespace plumb::cpu {

void CpuOps::do_softmax(const Tensor& out, const Tensor& x) {
  const Format storage = format("softmax", x);
  if (x.numel() == 0) return;
  const int64_t length = x.dim(-1);
  const RowOffsets to(out), from(x);
  pool_.for_each(from.count(), 3 * static_cast<double>(length), [&](int64_t row, int) {
    const char* source = storage.at(x, from[row]);
    char* target = storage.at(static_cast<char*>(out.raw()), to[row]);
    float buffer[kPiece], exponentials[kPiece];
    const auto pieces = [&](const auto& visit) {
      for (int64_t begin = 0; begin < length; begin += kPiece) {
        const int64_t n = std::min(kPiece, length - begin);
        visit(begin, n, storage.read(storage.at(source, begin), buffer, n));
      }
    };
    constexpr float lowest = -std::numeric_limits<float>::infinity();
    float max = lowest;
    pieces([&](int64_t, int64_t n, const float* piece) { max = simd_->max(piece, max, n); });
    const float shift = max == lowest ? 0 : max;  // NaN has been passed over, and shows in the sum
    double sum = 0;
    pieces([&](int64_t, int64_t n, const float* piece) {
      sum += simd_->exp_sum(exponentials, piece, shift, n);
    });
    const float divisor = sum == 0 ? 1 : static_cast<float>(sum);
    pieces([&](int64_t begin, int64_t n, const float* piece) {
      simd_->exp_sum(exponentials, piece, shift, n);
      simd_->divide(exponentials, exponentials, divisor, n);
      storage.write(storage.at(target, begin), exponentials, n);
    });
  });
}

}  // namespace plumb::cpu
