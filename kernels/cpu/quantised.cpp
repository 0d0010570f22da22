// Quantised values: decoded where they are needed, some columns of weights at a time, and then
// multiplied as floats are; codes of both operands as whole numbers.
#include <algorithm>
#include <cstring>

#include "kernels/core/error.h"
#include "kernels/cpu/blocked_gemm.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/decode_rows.h"
#include "kernels/ops/ids.h"
#include "kernels/ops/quantisers.h"

namespace plumb::cpu {
namespace {

constexpr double kDecodeCost = 8;       // of a code, in units of ThreadPool::for_each
constexpr int64_t kOutputsOfUnit = 64;  // rows of the weight

void require_groups(OpId op, const QuantisedWeight& weight) {
  if (weight.group_index.defined()) require_ids(op, weight.group_index, weight.groups());
}
void require_decodes(const char* op, const QuantisedWeight& weight) {
  require<Unsupported>(weight.codes.dtype() != DType::f64, op,
                       "codes is f64, the cpu device reads f8_e4m3 and f8_e5m2");
}

// Elements of any float dtype as float32, row after row.
void widen_all(const Tensor& t, float* to) {
  const RowOffsets rows(t);
  for (int64_t row = 0; row < rows.count(); ++row) {
    for (int64_t i = 0; i < t.dim(-1); ++i) {
      *to++ = decode::number_at<float>(t.dtype(), t.raw(), rows[row] + i);
    }
  }
}

}  // namespace

void CpuOps::do_dequantize(const Tensor& out, const QuantisedWeight& weight) {
  const Format storage = format("dequantize", out);
  require_decodes("dequantize", weight);
  require_groups(OpId::dequantize, weight);
  if (out.numel() == 0) return;
  const PackedWeight p = packed(weight);
  const RowOffsets rows(out);
  pool_.for_each(p.rows, kDecodeCost * static_cast<double>(p.columns), [&](int64_t n, int) {
    char* to = static_cast<char*>(out.raw()) + rows[n] * storage.size();
    for (int64_t k = 0; k < p.columns; k += kPiece) {
      float line[kPiece];
      const int64_t count = std::min(kPiece, p.columns - k);
      storage.wide() ? decode_row(p, n, k, count, line) : decode_row_oddly(p, n, k, count, line);
      storage.write(storage.at(to, k), line, count);
    }
  });
}

void CpuOps::do_quantize(const QuantizeCall& call) {
  const Format storage = format("quantize", call.x);
  const quantisers::Grid grid = quantisers::grid_of(call.codes.dtype(), call.rule, call.divisor);
  const int64_t rows = call.x.dim(0), columns = call.x.dim(1);
  const int64_t across = call.scales.dim(1);
  const auto put = [](const Tensor& t, int64_t row, int64_t column, double value) {
    store(t.dtype(), t.data<char>() + (row * t.stride(0) + column) * size_of(t.dtype()), value);
  };
  const double cost = 30 * static_cast<double>(call.group_rows * call.group_columns);
  pool_.for_each(call.scales.numel(), cost, [&](int64_t group, int) {
    const int64_t row0 = group / across * call.group_rows;
    const int64_t column0 = group % across * call.group_columns;
    const int64_t row1 = std::min(rows, row0 + call.group_rows);
    const int64_t column1 = std::min(columns, column0 + call.group_columns);
    const auto each = [&](const auto& visit) {
      for (int64_t r = row0; r < row1; ++r) {
        for (int64_t c = column0; c < column1; c += kPiece) {
          float line[kPiece];
          const int64_t n = std::min(kPiece, column1 - c);
          storage.widen(line, storage.at(call.x, r * call.x.stride(0) + c), n);
          for (int64_t i = 0; i < n; ++i) visit(r, c + i, line[i]);
        }
      }
    };
    quantisers::Extremes values;
    each([&](int64_t, int64_t, float x) { values.take(x); });
    float scale = 0, zero = 0;
    double stored = 0;
    if (call.rule == ScaleRule::shared_exponent) {
      const int exponent = quantisers::exponent_of(grid, values);
      stored = exponent;
      scale = quantisers::power_of(exponent);
    } else {
      stored = round_to(call.scales.dtype(), quantisers::scale_of(grid, values));
      scale = static_cast<float>(stored);
    }
    put(call.scales, group / across, group % across, stored);
    if (call.rule == ScaleRule::asymmetric) {
      zero = quantisers::zero_of(grid, values, scale);
      put(call.zeros, group / across, group % across, zero);
    }
    each([&](int64_t r, int64_t c, float x) {
      put(call.codes, r, c, quantisers::code_of(grid, x, scale, zero));
    });
  });
}

namespace {

// The sums of all rows of x with some rows of the weight, in float32: [rows, outputs].
struct QuantisedProduct {
  const Simd& simd;
  const PackedWeight& weight;
  const float* x;       // [rows, inner]
  const int8_t* codes;  // or codes of x
  int64_t rows;
  const RowOffsets* x_rows;
  const RowOffsets* sum_rows;  // kOutputsOfUnit each

  int64_t inner() const { return weight.columns; }
  int64_t tile_floats() const { return kOutputsOfUnit * inner(); }
  BlockedGemm gemm(int64_t outputs) const {
    return {simd, Format(simd, DType::f32), rows, outputs, inner()};
  }

  void of_floats(int64_t first, int64_t outputs, float* tile, float* scratch, float* sums) const {
    for (int64_t i = 0; i < outputs; ++i) {
      decode_row(weight, first + i, 0, inner(), tile + i * inner());
    }
    const BlockedGemm product = gemm(outputs);
    Gemm call{};
    call.m = rows;
    call.n = outputs;
    call.k = inner();
    call.a = reinterpret_cast<const char*>(x);
    call.a_rows = x_rows;
    call.b = reinterpret_cast<const char*>(tile);
    call.b_stride = inner();
    call.b_by_columns = true;
    call.out = reinterpret_cast<char*>(sums);
    call.out_rows = sum_rows;
    for (int64_t block = 0; block < product.blocks(); ++block) {
      product.compute(call, block, scratch);
    }
  }
  // Exact.
  void of_codes(int64_t first, int64_t outputs, int32_t* tile, float* sums) const {
    const bool has_zero = weight.layout.zeros != ZeroType::none;
    for (int64_t i = 0; i < outputs; ++i) {
      for (int64_t k = 0; k < inner(); ++k) {
        const float zero = has_zero ? decode::zero_at<float>(weight, first + i, k) : 0.0f;
        tile[k] = static_cast<int32_t>(decode::code_at<float>(weight, first + i, k) - zero);
      }
      for (int64_t row = 0; row < rows; ++row) {
        const int8_t* a = codes + row * inner();
        int32_t sum = 0;
        for (int64_t k = 0; k < inner(); ++k) sum += a[k] * tile[k];
        sums[row * kOutputsOfUnit + i] = static_cast<float>(sum);
      }
    }
  }
};

}  // namespace

void CpuOps::do_quantised_linear(const QuantisedLinearCall& call) {
  const Format storage = format("quantised_linear", call.out);
  require_decodes("quantised_linear", call.weight);
  require_groups(OpId::quantised_linear, call.weight);
  if (call.out.numel() == 0) return;
  const PackedWeight weight = packed(call.weight);
  const bool whole = call.of_whole_numbers();
  const int64_t inner = weight.columns, outputs = weight.rows;
  const RowOffsets out_rows(call.out);
  const int64_t rows = out_rows.count();
  Arena::Scope scope(arena());
  const auto floats = [&](int64_t n, int64_t m) { return arena().take(DType::f32, {n, m}); };
  const Tensor x = whole ? arena().take(DType::i8, {rows, inner}) : floats(rows, inner);
  if (whole) {
    const RowOffsets x_rows(call.x);
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(x.data<int8_t>() + row * inner, call.x.data<int8_t>() + x_rows[row],
                  static_cast<size_t>(inner));
    }
  } else {
    widen_all(call.x, x.data<float>());
  }
  const Tensor factors = floats(1, rows), bias = floats(1, outputs);
  if (call.x_scales.defined()) widen_all(call.x_scales, factors.data<float>());
  if (call.bias.defined()) widen_all(call.bias, bias.data<float>());
  const Tensor all_sums = arena().take(DType::f32, {pool_.size(), rows, kOutputsOfUnit});
  const RowOffsets x_rows(x), sum_rows(all_sums.slice(0, 0, 1));
  const QuantisedProduct product{*simd_,
                                 weight,
                                 whole ? nullptr : x.data<float>(),
                                 whole ? x.data<int8_t>() : nullptr,
                                 rows,
                                 &x_rows,
                                 &sum_rows};
  const int64_t scratch_floats = product.gemm(kOutputsOfUnit).scratch_floats();
  const Tensor tiles = floats(pool_.size(), product.tile_floats());
  const Tensor scratch = floats(pool_.size(), scratch_floats);
  const int64_t units = (outputs + kOutputsOfUnit - 1) / kOutputsOfUnit;
  const double cost =
      static_cast<double>(kOutputsOfUnit * inner) * (kDecodeCost + 0.2 * static_cast<double>(rows));
  pool_.for_each(units, cost, [&](int64_t unit, int worker) {
    const int64_t first = unit * kOutputsOfUnit, count = std::min(kOutputsOfUnit, outputs - first);
    float* tile = tiles.data<float>() + worker * product.tile_floats();
    float* sums = all_sums.data<float>() + worker * rows * kOutputsOfUnit;
    if (whole) {
      product.of_codes(first, count, reinterpret_cast<int32_t*>(tile), sums);
    } else {
      product.of_floats(first, count, tile, scratch.data<float>() + worker * scratch_floats, sums);
    }
    for (int64_t row = 0; row < rows; ++row) {
      float* line = sums + row * kOutputsOfUnit;
      for (int64_t i = 0; i < count; ++i) {
        if (call.x_scales.defined()) line[i] *= factors.data<float>()[row];
        if (whole) line[i] *= decode::scale_at<float>(weight, first + i, 0);
        if (call.bias.defined()) line[i] += bias.data<float>()[first + i];
      }
      char* to = static_cast<char*>(call.out.raw()) + (out_rows[row] + first) * storage.size();
      storage.write(to, line, count);
    }
  });
}

}  // namespace plumb::cpu
