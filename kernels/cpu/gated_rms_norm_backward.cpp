// The gradients of Mamba2's gated RMSNorm.
//
// x, gate, d_out, d_x, d_gate [..., C], weight, d_weight [C]. One unit of work is a block of rows,
// as in norms_backward.cpp; a group of a row is widened once.
#include <cmath>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/cpu_ops.h"

namespace plumb::cpu {

void CpuOps::do_gated_rms_norm_backward(const Tensor& d_x, const Tensor& d_gate,
                                        const Tensor& d_weight, const Tensor& x, const Tensor& gate,
                                        const Tensor& weight, const Tensor& d_out,
                                        const GatedRmsNormParams& params) {
  require_storage("gated_rms_norm_backward", x);
  const Format low = format("gated_rms_norm_backward", gate), storage(*simd_, x.dtype());
  const RowFunctions& floats = simd_->floats();
  const int64_t width = params.group_size, columns = x.dim(-1);
  const RowOffsets to(d_x), to_gate(d_gate), from(x), gates(gate), gradients(d_out);
  const auto by_formula = [&](Formula f, float* out, const float* a, const float* b, const float* c,
                              int64_t n) {
    floats.map[static_cast<size_t>(f)](out, a, b, c, 0, 0, n);
  };
  Arena::Scope scope(arena());
  const ColumnSums sums(arena(), x.numel() > 0 ? from.count() : 0, columns);
  const Tensor scratch = arena().take(DType::f32, {pool_.size(), 4, width});
  const Tensor weights = arena().take(DType::f32, {std::max<int64_t>(1, columns)});
  low.widen(weights.data<float>(), weight.raw(), columns);
  const double cost = 8 * static_cast<double>(columns * sums.rows_of_block());
  pool_.for_each(sums.blocks(), cost, [&](int64_t block, int worker) {
    float* in = scratch.data<float>() + worker * 4 * width;
    float *by = in + width, *v = by + width, *g = v + width;
    const auto each_piece = [&](const auto& f) {
      for (int64_t at = 0; at < width; at += kPiece) f(at, std::min(kPiece, width - at));
    };
    const auto one_group = [&](int64_t row, int64_t first) {
      double squares = 0, products = 0;
      each_piece([&](int64_t at, int64_t n) {
        storage.widen(in + at, storage.at(x, from[row] + first + at), n);
        low.widen(by + at, low.at(gate, gates[row] + first + at), n);
        storage.widen(g + at, storage.at(d_out, gradients[row] + first + at), n);
        floats.apply(Formula::silu, v + at, by + at, nullptr, n);
        floats.mul(v + at, v + at, in + at, n);
        squares += floats.sum_squares(v + at, n);
      });
      const auto count = static_cast<double>(width);
      const double r = 1 / std::sqrt(squares / count + params.eps);
      const auto factor = static_cast<float>(r);
      float normed[kPiece];
      each_piece([&](int64_t at, int64_t n) {
        if (d_weight.defined()) {
          floats.scale(normed, v + at, factor, n);
          storage.rows().round(normed, normed, n);
          simd_->multiply_add(sums.at(0, block) + first + at, g + at, normed, n);
        }
        floats.mul(g + at, g + at, weights.data<float>() + first + at, n);
        products += simd_->dot(g + at, v + at, n);
      });
      const auto slope = static_cast<float>(-r * r * products / count);
      each_piece([&](int64_t at, int64_t n) {
        floats.apply(Formula::scaled_add, g + at, v + at, g + at, n, slope);
        floats.scale(g + at, g + at, factor, n);
        by_formula(Formula::gate_backward_silu, v + at, by + at, in + at, g + at, n);
        low.rows().narrow(low.at(d_gate.data<char>(), to_gate[row] + first + at), v + at, n);
        by_formula(Formula::up_backward_silu, g + at, by + at, g + at, nullptr, n);
        storage.rows().narrow(storage.at(d_x.data<char>(), to[row] + first + at), g + at, n);
      });
    };
    sums.each_row(block, [&](int64_t row) {
      for (int64_t first = 0; first < columns; first += width) one_group(row, first);
    });
  });
  if (d_weight.defined()) sums.write(pool_, *simd_, d_weight);
}

}  // namespace plumb::cpu
