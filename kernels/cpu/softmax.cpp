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

// A row is read twice: for its sum, and for the result.
void CpuOps::do_softmax_backward(const Tensor& d_x, const Tensor& y, const Tensor& d_out) {
  const Format storage = format("softmax_backward", y);
  if (y.numel() == 0) return;
  const int64_t length = y.dim(-1);
  const RowOffsets to(d_x), weights(y), gradients(d_out);
  const RowFunctions& floats = simd_->floats();
  pool_.for_each(weights.count(), 1.5 * static_cast<double>(length), [&](int64_t row, int) {
    const char *p = storage.at(y, weights[row]), *d = storage.at(d_out, gradients[row]);
    char* target = storage.at(d_x.data<char>(), to[row]);
    float a[kPiece], b[kPiece];
    const auto pieces = [&](const auto& visit) {
      for (int64_t at = 0; at < length; at += kPiece) {
        const int64_t n = std::min(kPiece, length - at);
        storage.widen(b, storage.at(d, at), n);
        visit(at, storage.read(storage.at(p, at), a, n), n);
      }
    };
    double sum = 0;
    pieces([&](int64_t, const float* of_y, int64_t n) { sum += simd_->dot(of_y, b, n); });
    pieces([&](int64_t at, const float* of_y, int64_t n) {
      floats.apply(Formula::add_scalar, b, b, nullptr, n, static_cast<float>(-sum));
      floats.mul(b, b, of_y, n);
      storage.rows().narrow(storage.at(target, at), b, n);
    });
  });
}

}  // namespace plumb::cpu
