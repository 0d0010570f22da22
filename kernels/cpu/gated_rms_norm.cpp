// Mamba2's gated RMSNorm over groups of channels: v = x silu(gate), R(w R(v / rms(v))).
//
// x, gate [..., C], weight [C]. One unit of work is a group of one row: v is computed once and kept
// in float32. The sum has float32 lanes within a piece, float64 across pieces.
#include <cmath>

#include "kernels/cpu/cpu_ops.h"

namespace plumb::cpu {

void CpuOps::do_gated_rms_norm(const Tensor& out, const Tensor& x, const Tensor& gate,
                               const Tensor& weight, const GatedRmsNormParams& params) {
  require_storage("gated_rms_norm", x);
  const Format low = format("gated_rms_norm", gate), storage(*simd_, x.dtype());
  if (x.numel() == 0) return;
  const RowFunctions& rows = simd_->floats();
  const int64_t width = params.group_size, groups = x.dim(-1) / width;
  const RowOffsets to(out), from(x), gates(gate);
  Arena::Scope scope(arena());
  const Tensor scratch = arena().take(DType::f32, {pool_.size(), width});
  const double cost = 4 * static_cast<double>(width);
  pool_.for_each(from.count() * groups, cost, [&](int64_t unit, int worker) {
    const int64_t row = unit / groups, first = unit % groups * width;
    float* v = scratch.data<float>() + worker * width;
    float buffer[kPiece], other[kPiece];
    double squares = 0;
    const auto each_piece = [&](const auto& f) {
      for (int64_t at = 0; at < width; at += kPiece) f(at, std::min(kPiece, width - at));
    };
    each_piece([&](int64_t at, int64_t n) {
      const float* g = low.read(low.at(gate, gates[row] + first + at), buffer, n);
      rows.apply(Formula::silu, v + at, g, nullptr, n);
      rows.mul(v + at, v + at, storage.read(storage.at(x, from[row] + first + at), other, n), n);
      squares += rows.sum_squares(v + at, n);
    });
    const double mean = squares / static_cast<double>(width);
    const float factor = static_cast<float>(1 / std::sqrt(mean + params.eps));
    each_piece([&](int64_t at, int64_t n) {
      rows.scale(v + at, v + at, factor, n);
      storage.rows().round(v + at, v + at, n);
      rows.mul(v + at, v + at, low.read(low.at(weight, first + at), buffer, n), n);
      storage.write(storage.at(static_cast<char*>(out.raw()), to[row] + first + at), v + at, n);
    });
  });
}

}  // namespace plumb::cpu
