// Quantised values: what layouts demand of their tensors, and calls as devices take them.
#include <algorithm>

#include "kernels/ops/device_ops.h"
#include "kernels/ops/fits.h"
#include "kernels/ops/op_checks.h"

namespace plumb {
namespace {

int64_t parts(int64_t length, int64_t size) { return (length + size - 1) / size; }

// Of codes in one stored element.
int64_t codes_of_one(CodeType type) {
  return type == CodeType::words ? 8 : type == CodeType::bytes ? 2 : 1;
}

// The tensors of one weight, held to its layout.
class Demands {
 public:
  Demands(OpId op, QuantLayout layout, bool in_float64, int64_t rows, int64_t columns)
      : op_(name_of(op).data()),
        name_(name_of(layout)),
        layout_(row_of(layout)),
        in_float64_(in_float64),
        rows_(rows),
        columns_(columns) {}

  QuantisedWeight hold(const Tensor& codes, const Tensor& scales, const Tensor& zeros,
                       const Tensor& global_scale, const Tensor& group_index, const OfAxes& group) {
    const bool blocks = layout_.codes == CodeType::blocks;
    demand("scales", scales, !blocks);
    demand("zeros", zeros, layout_.zeros != ZeroType::none);
    demand("global_scale", global_scale, layout_.has_global_scale);
    require(!group_index.defined() || layout_.has_group_index, op_, "group_index is given, ", name_,
            " has none");
    hold_codes(codes);
    QuantisedWeight out{layout_,     codes, scales,   zeros, global_scale,
                        group_index, rows_, columns_, 1,     1};
    if (blocks) return out;
    hold_scale_dtype(scales);
    if (layout_.flat) {
      hold_flat(scales);
      return out;
    }
    out.scales = matrix(scales);
    const Shape groups = by_weight(out.scales.shape());
    out.group_rows = extent_of_group(0, groups[0], rows_, group[0]);
    out.group_columns = extent_of_group(1, groups[1], columns_, group[1]);
    if (layout_.zeros != ZeroType::none) out.zeros = held_zeros(zeros, groups);
    return out;
  }

 private:
  void demand(const char* operand, const Tensor& t, bool has) const {
    require(t.defined() == has, op_, operand, has ? " is missing, " : " is given, ", name_,
            has ? " has them" : " has none");
  }

  void hold_codes(const Tensor& codes) const {
    const DType dtype = codes.dtype();
    const char* expected = layout_.codes == CodeType::i8      ? "i8"
                           : layout_.codes == CodeType::words ? "i32"
                           : layout_.codes == CodeType::f8    ? "f8_e4m3 or f8_e5m2"
                                                              : "u8";
    const bool of_f8 =
        dtype == DType::f8_e4m3 || dtype == DType::f8_e5m2 || (in_float64_ && dtype == DType::f64);
    const bool fits = layout_.codes == CodeType::f8 ? of_f8 : name_of(dtype) == expected;
    require(fits, op_, "codes is ", name_of(dtype), ", expected ", expected, " of ", name_);
    const int64_t in_one = codes_of_one(layout_.codes);
    if (layout_.flat && (codes.rank() == 1 || (codes.rank() == 2 && codes.dim(1) == 1))) {
      const int64_t bytes = parts(rows_ * columns_, in_one);
      return require(codes.dim(0) == bytes, op_, "codes has shape ", codes.shape(), ", expected ",
                     bytes, " bytes of a weight ", Shape{rows_, columns_}, " of ", name_);
    }
    Shape shape = layout_.by_input ? Shape{columns_, rows_} : Shape{rows_, columns_};
    if (layout_.codes == CodeType::blocks) {
      const BlockLayout& block = layout_.block;
      require(columns_ % block.codes == 0, op_, "a row has ", columns_, " codes, blocks of ", name_,
              " have ", static_cast<int>(block.codes));
      shape = {rows_, columns_ / block.codes * block.bytes};
    } else {
      shape.set(layout_.packed_axis, parts(shape[layout_.packed_axis], in_one));
      require(!layout_.flat || columns_ % in_one == 0, op_, "codes has shape ", codes.shape(),
              ", of an odd number of columns ", columns_, " they are in one row");
    }
    require(codes.shape() == shape, op_, "codes has shape ", codes.shape(), ", expected ", shape,
            " of a weight ", Shape{rows_, columns_}, " of ", name_);
  }

  void hold_scale_dtype(const Tensor& scales) const {
    const bool bytes = scales.dtype() == DType::u8;
    require(bytes == layout_.exponents, op_, "scales is ", name_of(scales.dtype()), ", expected ",
            layout_.exponents ? "u8" : "a float dtype", " of ", name_);
  }

  void hold_flat(const Tensor& scales) const {
    const int64_t count = parts(rows_ * columns_, layout_.flat);
    require(scales.numel() == count && scales.contiguous(), op_, "scales has shape ",
            scales.shape(), ", expected ", count, " of ", static_cast<int>(layout_.flat),
            " codes each of a weight ", Shape{rows_, columns_});
  }

  // One, or one a row, as [groups of rows, groups of columns].
  Tensor matrix(const Tensor& t) const {
    if (t.numel() == 1) return t.view({1, 1});
    if (t.rank() == 1) return t.view({t.dim(0), 1});
    require(t.rank() == 2, op_, "scales or zeros have shape ", t.shape(),
            ", expected that of groups of rows and columns");
    return t;
  }
  Shape by_weight(const Shape& stored) const {
    return layout_.by_input ? Shape{stored[1], stored[0]} : stored;
  }

  // How many rows, or columns, share one of `have` scales.
  int64_t extent_of_group(int axis, int64_t have, int64_t length, int64_t given) const {
    if (have == length) return 1;
    const bool several = axis == 0 && have > 1 && !layout_.of_several_rows;
    int64_t size = have == 1 ? std::max<int64_t>(length, 1) : given;
    const int64_t even = have > 0 && length % have == 0 ? length / have : 0;
    if (size == 0 && (even & (even - 1)) == 0) size = even;
    require(size > 0 && have == parts(length, size) && !several, op_, "scales have ", have,
            " groups along axis ", axis, " of a weight ", Shape{rows_, columns_}, " of ", name_,
            several ? ", whose scales are of one row each, or of all"
                    : ": say how many rows and columns share a scale");
    return size;
  }

  Tensor held_zeros(const Tensor& zeros, const Shape& groups) const {
    const Tensor out = matrix(zeros);
    Shape shape = by_weight(groups);  // as they are stored
    const bool packed = layout_.zeros == ZeroType::words;
    if (packed) shape.set(layout_.zeros_axis, parts(shape[layout_.zeros_axis], 8));
    require(out.shape() == shape, op_, "zeros has shape ", zeros.shape(), ", expected ", shape,
            " of ", name_, " with scales of as many groups");
    const DType dtype = zeros.dtype();
    const bool whole = dtype == DType::i8 || dtype == DType::u8 || dtype == DType::i32;
    require(packed ? dtype == DType::i32 : whole, op_, "zeros is ", name_of(dtype), ", expected ",
            packed ? "i32" : "i8, u8 or i32", " of ", name_);
    return out;
  }

  const char* op_;
  const std::string_view name_;
  const LayoutRow& layout_;
  const bool in_float64_;
  const int64_t rows_, columns_;
};

void require_positive_group(const char* op, const OfAxes& group) {
  for (const int64_t size : group) {
    require(size >= 0, op, "groups of ", group[0], " x ", group[1], " must not be negative");
  }
}

}  // namespace

QuantisedWeight Ops::weight_of(OpId op, const Tensor& codes, const Tensor& scales,
                               const Tensor& zeros, const Tensor& global_scale,
                               const Tensor& group_index, const QuantisedParams& params,
                               int64_t rows, int64_t columns) const {
  require_positive_group(name_of(op).data(), params.group);
  return Demands(op, params.layout, takes_narrow_weights(), rows, columns)
      .hold(codes, scales, zeros, global_scale, group_index, params.group);
}

void Ops::dequantize(const Tensor& out, const Tensor& codes, const Tensor& scales,
                     const Tensor& zeros, const Tensor& global_scale, const Tensor& group_index,
                     const QuantisedParams& params) {
  const CheckedCall call =
      checked<OpId::dequantize>(out, codes, scales, zeros, global_scale, group_index);
  const QuantisedWeight weight = weight_of(OpId::dequantize, codes, scales, zeros, global_scale,
                                           group_index, params, out.dim(0), out.dim(1));
  run_op<&Ops::dequantize>(
      OpId::dequantize, [&](DeviceOps& device) { device.do_dequantize(out, weight); }, out, codes,
      scales, zeros, global_scale, group_index, params);
  record(call);
}

void Ops::quantize(const Tensor& codes, const Tensor& scales, const Tensor& zeros, const Tensor& x,
                   const QuantizeParams& params) {
  const CheckedCall call = checked<OpId::quantize>(codes, scales, zeros, x);
  const char* op = "quantize";
  require_positive_group(op, params.group);
  require(params.divisor > 0, op, "divisor is ", params.divisor, ", must be positive");
  const bool of_floats = codes.dtype() == DType::f8_e4m3 || codes.dtype() == DType::f8_e5m2;
  const bool asymmetric = params.rule == ScaleRule::asymmetric;
  const bool exponents = params.rule == ScaleRule::shared_exponent;
  require(zeros.defined() == asymmetric, op, "zeros ", asymmetric ? "are missing" : "are given",
          ", asymmetric codes alone have them");
  require(exponents   ? of_floats
          : of_floats ? !asymmetric
                      : is_code(codes.dtype()),
          op, "codes is ", name_of(codes.dtype()),
          exponents ? ", with shared exponents" : ", asymmetric ones",
          exponents ? " they are f8_e4m3 or f8_e5m2" : " are i8 or u8");
  require(of_floats || codes.dtype() == DType::i8 || (asymmetric && codes.dtype() == DType::u8), op,
          "codes is ", name_of(codes.dtype()),
          ", expected i8, f8_e4m3 or f8_e5m2, or, asymmetric, ", "i8 or u8");
  require(exponents ? scales.dtype() == DType::u8 : is_floating(scales.dtype()), op, "scales is ",
          name_of(scales.dtype()), exponents ? ", shared exponents are u8" : ", expected a float");
  require(!asymmetric || zeros.dtype() == codes.dtype(), op, "zeros is ",
          asymmetric ? name_of(zeros.dtype()) : "", ", expected ", name_of(codes.dtype()),
          " as codes");
  const auto size = [](int64_t given, int64_t length) {
    return given > 0 ? given : std::max<int64_t>(length, 1);
  };
  const int64_t rows = size(params.group[0], x.dim(0)), columns = size(params.group[1], x.dim(1));
  require_shape(op, "scales", scales, {parts(x.dim(0), rows), parts(x.dim(1), columns)});
  const QuantizeCall quantize{
      call.row, codes,  scales, zeros, x, params.rule, static_cast<float>(params.divisor),
      rows,     columns};
  run_op<&Ops::quantize>(
      OpId::quantize, [&](DeviceOps& device) { device.do_quantize(quantize); }, codes, scales,
      zeros, x, params);
  record(call);
}

void Ops::quantised_linear(const Tensor& out, const Tensor& x, const Tensor& codes,
                           const Tensor& scales, const Tensor& zeros, const Tensor& global_scale,
                           const Tensor& group_index, const Tensor& x_scales, const Tensor& bias,
                           const QuantisedParams& params) {
  const CheckedCall call = checked<OpId::quantised_linear>(
      out, x, codes, scales, zeros, global_scale, group_index, x_scales, bias);
  const char* op = "quantised_linear";
  QuantisedLinearCall linear{call.row,
                             out,
                             x,
                             weight_of(OpId::quantised_linear, codes, scales, zeros, global_scale,
                                       group_index, params, call.extent('N'), call.extent('K')),
                             x_scales,
                             bias};
  if (!x_scales.defined()) {
    require(x.dtype() == call.storage, op, "x is ", name_of(x.dtype()), ", expected ",
            name_of(call.storage), ", or codes with x_scales");
  } else if (x.dtype() == DType::i8) {
    require(linear.weight.layout.codes == CodeType::i8 && linear.weight.groups() <= 1, op,
            "x is i8: codes of the weight must be, too, with scales of whole rows; they are ",
            linear.weight.layout.name, " with ", linear.weight.groups(), " groups of columns");
  } else {
    require(is_code(x.dtype()) && is_floating(x.dtype()), op, "x is ", name_of(x.dtype()),
            ", with x_scales it has codes: i8, f8_e4m3 or f8_e5m2");
  }
  if (linear.of_whole_numbers()) {
    constexpr int64_t kMostTerms = 32768;  // so many products of 128 and 383 are in i32
    require<Unsupported>(call.extent('K') <= kMostTerms, op, "sums of ", call.extent('K'),
                         " products of codes, at most ", kMostTerms, " are implemented");
    require<Unsupported>(!zeros.defined() || zeros.dtype() != DType::i32, op,
                         "zeros is i32, with codes of x it is i8 or u8");
  }
  require(!x_scales.defined() || is_floating(x_scales.dtype()), op, "x_scales is u8, expected a ",
          "float dtype");
  run_op<&Ops::quantised_linear>(
      OpId::quantised_linear, [&](DeviceOps& device) { device.do_quantised_linear(linear); }, out,
      x, codes, scales, zeros, global_scale, group_index, x_scales, bias, params);
  record(call);
}

void Ops::quantised_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                         const Tensor& k_scales, const Tensor& v_scales, const AttentionMask& mask,
                         const SdpaParams& params) {
  const CheckedCall call = checked<OpId::quantised_sdpa>(out, q, k, v, k_scales, v_scales);
  require(k.dtype() != DType::i32 && k.dtype() != DType::u8 && v.dtype() == k.dtype(),
          "quantised_sdpa", "k is ", name_of(k.dtype()), ", v ", name_of(v.dtype()),
          ", expected i8, f8_e4m3 or f8_e5m2 of both");
  require<Unsupported>(!mask.position, "quantised_sdpa",
                       "of slots with a position there is none: give key_valid");
  if (!runs_fused(OpId::quantised_sdpa)) {
    return compose_quantised_sdpa(out, q, k, v, k_scales, v_scales, mask, params);
  }
  const auto composed = [&](DeviceOps&) {
    compose_quantised_sdpa(out, q, k, v, k_scales, v_scales, mask, params);
  };
  run_op<&Ops::quantised_sdpa>(OpId::quantised_sdpa, composed, out, q, k, v, k_scales, v_scales,
                               mask, params);
  record(call);
}

void Ops::compose_quantised_sdpa(const Tensor& out, const Tensor& q, const Tensor& k,
                                 const Tensor& v, const Tensor& k_scales, const Tensor& v_scales,
                                 const AttentionMask& mask, const SdpaParams& params) {
  Arena::Scope scope(arena_);
  const auto values = [&](const Tensor& codes, const Tensor& scales) {
    const Tensor wide = arena_.take(scales.dtype(), codes.shape());
    cast(wide, codes);
    mul(wide, wide, scales);
    if (q.dtype() == scales.dtype()) return wide;
    const Tensor stored = arena_.take(q.dtype(), codes.shape());
    cast(stored, wide);
    return stored;
  };
  const Tensor keys = values(k, k_scales);
  sdpa(out, q, keys, values(v, v_scales), mask, params);
}

}  // namespace plumb
