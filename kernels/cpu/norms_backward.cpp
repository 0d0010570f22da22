// The gradients of RMSNorm and LayerNorm.
//
// x, d_out, d_x [..., C], weight [C]. One unit of work is a block of rows: what a row adds to the
// weight's gradient goes to the block's sums (column_sums.h). A row is widened once; its sums have
// float32 lanes within a piece, float64 across pieces.
#include <cmath>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/cpu_ops.h"

namespace plumb::cpu {
namespace {

template <class Visit>
void each_norm_piece(int64_t columns, const Visit& visit) {
  for (int64_t at = 0; at < columns; at += kPiece) visit(at, std::min(kPiece, columns - at));
}

// offset + weight, in float32.
Tensor widened_weight(Arena& arena, const Format& storage, const Simd& simd, const Tensor& weight,
                      double offset) {
  const Tensor out = arena.take(DType::f32, weight.shape());
  storage.widen(out.data<float>(), weight.raw(), weight.dim(0));
  simd.floats().apply(Formula::add_scalar, out.raw(), out.raw(), nullptr, weight.dim(0),
                      static_cast<float>(offset));
  return out;
}

}  // namespace

void CpuOps::do_rms_norm_backward(const Tensor& d_x, const Tensor& d_weight, const Tensor& x,
                                  const Tensor& weight, const Tensor& d_out,
                                  const RmsNormParams& params) {
  const Format storage = format("rms_norm_backward", x);
  const RowFunctions& floats = simd_->floats();
  const int64_t columns = x.dim(-1);
  const RowOffsets to(d_x), from(x), gradients(d_out);
  Arena::Scope scope(arena());
  const ColumnSums sums(arena(), x.numel() > 0 ? from.count() : 0, columns);
  const Tensor scratch = arena().take(DType::f32, {pool_.size(), 2, columns});
  const Tensor scale = widened_weight(arena(), storage, *simd_, weight, params.weight_offset);
  const double cost = 2 * static_cast<double>(columns * sums.rows_of_block());
  pool_.for_each(sums.blocks(), cost, [&](int64_t block, int worker) {
    float* in = scratch.data<float>() + worker * 2 * columns;
    float* g = in + columns;
    float* by_weight = sums.at(0, block);
    sums.each_row(block, [&](int64_t row) {
      const char* d = storage.at(d_out, gradients[row]);
      double squares = 0, products = 0;
      each_norm_piece(columns, [&](int64_t at, int64_t n) {
        storage.widen(in + at, storage.at(x, from[row] + at), n);
        storage.widen(g + at, storage.at(d, at), n);
        floats.mul(g + at, g + at, scale.data<float>() + at, n);
        squares += floats.sum_squares(in + at, n);
        products += simd_->dot(g + at, in + at, n);
      });
      const auto count = static_cast<double>(columns);
      const double r = 1 / std::sqrt(squares / count + params.eps);
      const auto factor = static_cast<float>(r);
      const auto slope = static_cast<float>(-r * r * products / count);
      char* out = storage.at(d_x.data<char>(), to[row]);
      float buffer[kPiece], normed[kPiece];
      each_norm_piece(columns, [&](int64_t at, int64_t n) {
        floats.scale(normed, in + at, factor, n);
        floats.apply(Formula::scaled_add, in + at, in + at, g + at, n, slope);
        floats.scale(in + at, in + at, factor, n);
        if (d_weight.defined()) {
          if (params.rounding == WeightRounding::before) storage.rows().round(normed, normed, n);
          simd_->multiply_add(by_weight + at, storage.read(storage.at(d, at), buffer, n), normed,
                              n);
        }
        storage.rows().narrow(storage.at(out, at), in + at, n);
      });
    });
  });
  if (d_weight.defined()) sums.write(pool_, *simd_, d_weight);
}

void CpuOps::do_layer_norm_backward(const Tensor& d_x, const Tensor& d_weight, const Tensor& d_bias,
                                    const Tensor& x, const Tensor& weight, const Tensor& d_out,
                                    double eps) {
  const Format storage = format("layer_norm_backward", x);
  const RowFunctions& floats = simd_->floats();
  const int64_t columns = x.dim(-1);
  const RowOffsets to(d_x), from(x), gradients(d_out);
  Arena::Scope scope(arena());
  const ColumnSums sums(arena(), x.numel() > 0 ? from.count() : 0, columns, 2);
  const Tensor scratch = arena().take(DType::f32, {pool_.size(), 2, columns});
  const Tensor scale = widened_weight(arena(), storage, *simd_, weight, 0);
  const double cost = 3 * static_cast<double>(columns * sums.rows_of_block());
  pool_.for_each(sums.blocks(), cost, [&](int64_t block, int worker) {
    float* in = scratch.data<float>() + worker * 2 * columns;
    float* g = in + columns;
    const auto count = static_cast<double>(columns);
    sums.each_row(block, [&](int64_t row) {
      const char* d = storage.at(d_out, gradients[row]);
      double total = 0, squares = 0, products = 0, sum = 0;
      each_norm_piece(columns, [&](int64_t at, int64_t n) {
        storage.widen(in + at, storage.at(x, from[row] + at), n);
        storage.widen(g + at, storage.at(d, at), n);
        total += floats.sum(in + at, n);
        if (d_bias.defined()) {
          floats.add(sums.at(1, block) + at, sums.at(1, block) + at, g + at, n);
        }
        floats.mul(g + at, g + at, scale.data<float>() + at, n);
        sum += floats.sum(g + at, n);
      });
      const auto mean = static_cast<float>(total / count);
      each_norm_piece(columns, [&](int64_t at, int64_t n) {
        floats.apply(Formula::add_scalar, in + at, in + at, nullptr, n, -mean);
        squares += floats.sum_squares(in + at, n);
        products += simd_->dot(g + at, in + at, n);
      });
      const double r = 1 / std::sqrt(squares / count + eps);
      const auto factor = static_cast<float>(r);
      const auto slope = static_cast<float>(-r * r * products / count);
      const auto shift = static_cast<float>(-sum / count);
      char* out = storage.at(d_x.data<char>(), to[row]);
      float buffer[kPiece], normed[kPiece];
      each_norm_piece(columns, [&](int64_t at, int64_t n) {
        floats.scale(normed, in + at, factor, n);
        floats.apply(Formula::add_scalar, g + at, g + at, nullptr, n, shift);
        floats.apply(Formula::scaled_add, in + at, in + at, g + at, n, slope);
        floats.scale(in + at, in + at, factor, n);
        if (d_weight.defined()) {
          simd_->multiply_add(sums.at(0, block) + at, storage.read(storage.at(d, at), buffer, n),
                              normed, n);
        }
        storage.rows().narrow(storage.at(out, at), in + at, n);
      });
    });
  });
  if (d_weight.defined()) sums.write(pool_, *simd_, d_weight, 0);
  if (d_bias.defined()) sums.write(pool_, *simd_, d_bias, 1);
}

}  // namespace plumb::cpu
