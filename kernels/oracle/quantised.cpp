// Quantised values. Formulas and roundings: ops.h.
#include <algorithm>
#include <cmath>

#include "kernels/ops/decode.h"
#include "kernels/ops/ids.h"
#include "kernels/ops/quantisers.h"
#include "kernels/oracle/oracle_ops.h"

namespace plumb {
namespace {

// [rows, columns] of exact codes, zeros and scales.
std::vector<double> weights_of(OpId op, const QuantisedWeight& weight) {
  if (weight.group_index.defined()) require_ids(op, weight.group_index, weight.groups());
  const PackedWeight packed_weight = packed(weight);
  std::vector<double> out;
  out.reserve(static_cast<size_t>(weight.rows * weight.columns));
  for (int64_t n = 0; n < weight.rows; ++n) {
    for (int64_t k = 0; k < weight.columns; ++k) {
      out.push_back(decode::weight_at<double>(packed_weight, n, k));
    }
  }
  return out;
}

Tensor as_tensor(const std::vector<double>& values, int64_t rows, int64_t columns) {
  const Tensor out = host_tensor(DType::f64, {rows, columns});
  std::copy(values.begin(), values.end(), out.data<double>());
  return out;
}

// Codes less zeros, and the scale of each row.
std::vector<double> whole_codes(const QuantisedWeight& weight) {
  const PackedWeight p = packed(weight);
  std::vector<double> out;
  for (int64_t n = 0; n < weight.rows; ++n) {
    for (int64_t k = 0; k < weight.columns; ++k) {
      const bool has_zero = p.layout.zeros != ZeroType::none;
      out.push_back(decode::code_at<double>(p, n, k) -
                    (has_zero ? decode::zero_at<double>(p, n, k) : 0));
    }
  }
  return out;
}

}  // namespace

void OracleOps::do_dequantize(const Tensor& out, const QuantisedWeight& weight) {
  put(out, weights_of(OpId::dequantize, weight), "dequantize");
}

void OracleOps::do_quantize(const QuantizeCall& call) {
  const int64_t rows = call.x.dim(0), columns = call.x.dim(1);
  const quantisers::Grid grid = quantisers::grid_of(call.codes.dtype(), call.rule, call.divisor);
  const std::vector<double> x = values_of(call.x);
  std::vector<double> codes(x.size()), scales, zeros;
  for (int64_t row0 = 0; row0 < rows; row0 += call.group_rows) {
    for (int64_t column0 = 0; column0 < columns; column0 += call.group_columns) {
      const auto each = [&](const auto& visit) {
        for (int64_t r = row0; r < std::min(rows, row0 + call.group_rows); ++r) {
          for (int64_t c = column0; c < std::min(columns, column0 + call.group_columns); ++c) {
            visit(static_cast<size_t>(r * columns + c));
          }
        }
      };
      quantisers::Extremes values;
      each([&](size_t i) { values.take(static_cast<float>(x[i])); });
      double scale = 0, zero = 0;
      if (call.rule == ScaleRule::shared_exponent) {
        scales.push_back(quantisers::exponent_of(grid, values));
        scale = std::ldexp(1.0, static_cast<int>(scales.back()) - 127);
      } else {
        scale = round_to(call.scales.dtype(), quantisers::scale_of(grid, values));
        scales.push_back(scale);
      }
      const auto narrow = static_cast<float>(scale);
      if (call.rule == ScaleRule::asymmetric) zero = quantisers::zero_of(grid, values, narrow);
      zeros.push_back(zero);
      each([&](size_t i) {
        codes[i] =
            quantisers::code_of(grid, static_cast<float>(x[i]), narrow, static_cast<float>(zero));
      });
    }
  }
  put(call.codes, codes, "quantize");
  put(call.scales, scales, "quantize.scale");
  if (call.zeros.defined()) put(call.zeros, zeros, "quantize.zero");
}

void OracleOps::do_quantised_linear(const QuantisedLinearCall& call) {
  const QuantisedWeight& weight = call.weight;
  const int64_t columns = weight.rows, inner = weight.columns;
  const int64_t rows = call.out.numel() / std::max<int64_t>(columns, 1);
  const bool whole = call.of_whole_numbers();
  const Noise noise(call.out.dtype());
  const Tensor right = as_tensor(
      whole ? whole_codes(weight) : weights_of(OpId::quantised_linear, weight), columns, inner);
  std::vector<double> values = product(rows, columns, inner, values_of(call.x), Right(right), true,
                                       whole ? Noise(DType::f64) : noise);
  const std::vector<double> x_scales =
      call.x_scales.defined() ? values_of(call.x_scales) : std::vector<double>();
  const std::vector<double> bias =
      call.bias.defined() ? values_of(call.bias) : std::vector<double>();
  const PackedWeight p = packed(weight);
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t row = i / static_cast<size_t>(columns), column = i % static_cast<size_t>(columns);
    if (!x_scales.empty()) values[i] = noise.function(values[i] * x_scales[row]);
    if (whole) {
      const auto n = static_cast<int64_t>(column);
      values[i] = noise.function(values[i] * decode::scale_at<double>(p, n, 0));
    }
    if (!bias.empty()) values[i] += bias[column];
  }
  put(call.out, values, "quantised_linear");
}

}  // namespace plumb
