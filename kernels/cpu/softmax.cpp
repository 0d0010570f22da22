// Softmax over the last axis: R(exp(x - max) / sum). A row of -inf gives zeros.
//
// One unit of work is a row: maximum, sum of exponentials, result. The exponentials are kept where
// there is room, in a float32 output or in a line of kLine, and computed again in longer 16-bit
// rows.
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
    const RowFunctions& rows = storage.rows();
    if (length <= simd_->tile_columns / 2) return rows.softmax_vector(target, source, length);
    float line[kLine];
    float* kept = storage.wide()    ? reinterpret_cast<float*>(target)
                  : length <= kLine ? line
                                    : nullptr;
    const auto pieces = [&](const auto& visit) {
      for (int64_t begin = 0; begin < length; begin += kPiece) {
        visit(begin, std::min(kPiece, length - begin));
      }
    };
    constexpr float lowest = -std::numeric_limits<float>::infinity();
    float max = lowest;
    pieces([&](int64_t begin, int64_t n) { max = rows.max(storage.at(source, begin), max, n); });
    const float shift = max == lowest ? 0 : max;  // NaN has been passed over, and shows in the sum
    const auto exponentials = [&](int64_t begin, int64_t n, double& total) {
      float* e = kept ? kept + begin : line;
      total += rows.exp_sum(e, storage.at(source, begin), shift, n);
      return e;
    };
    double sum = 0, again = 0;
    pieces([&](int64_t begin, int64_t n) { exponentials(begin, n, sum); });
    const float divisor = sum == 0 ? 1 : static_cast<float>(sum);
    pieces([&](int64_t begin, int64_t n) {
      float* e = kept ? kept + begin : exponentials(begin, n, again);
      rows.narrow_quotient(storage.at(target, begin), e, divisor, n);
    });
  });
}

}  // namespace plumb::cpu
