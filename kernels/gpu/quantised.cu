// Quantised values: a thread decodes an element of a weight where it is needed. What unknown ids of
// groups are, a kernel before it notes.
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/ids.h"
#include "kernels/gpu/numbers.h"
#include "kernels/gpu/product_tiles.h"
#include "kernels/gpu/quantised_row.h"
#include "kernels/gpu/rows.h"
#include "kernels/ops/decode.h"
#include "kernels/ops/quantisers.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256;

struct GroupIds {
  Ids ids;
  int64_t columns, groups;
  OpId op;
  IdError* error;
};

__global__ void __launch_bounds__(kThreads) check_groups(GroupIds p) {
  wait_for_previous_kernel();
  const int64_t k = int64_t{kThreads} * block_index().x + thread_index().x;
  if (k >= p.columns) return;
  const int64_t id = p.ids.at(k);
  if (id < 0 || id >= p.groups) note_unknown(p.error, p.op, id, k, p.groups);
}

PackedWeight checked_weight(OpId op, const QuantisedWeight& weight, Stream stream, IdError* error) {
  require<Unsupported>(weight.codes.dtype() != DType::f64, name_of(op).data(),
                       "codes is f64, a GPU reads f8_e4m3 and f8_e5m2");
  if (weight.group_index.defined() && weight.columns > 0) {
    const GroupIds p{Ids(weight.group_index), weight.columns, weight.groups(), op, error};
    launch_overlapped<check_groups>(name_of(op).data(), {grid_for(p.columns, kThreads)}, {kThreads},
                                    0, stream, p);
  }
  return packed(weight);
}

template <class T>
struct DecodedOperands {
  PackedWeight weight;
  T* out;
  int64_t out_row;
  Divisor columns;
  int64_t total;
};

template <class T>
__global__ void __launch_bounds__(kThreads) decode_weight(DecodedOperands<T> p) {
  wait_for_previous_kernel();
  const int64_t i = int64_t{kThreads} * block_index().x + thread_index().x;
  if (i >= p.total) return;
  const Division at = divide(i, p.columns);
  T& out = p.out[at.quotient * p.out_row + at.remainder];
  if constexpr (sizeof(T) == sizeof(float)) {
    out = decode::weight_at<float>(p.weight, at.quotient, at.remainder);
  } else {
    out = from_float<T>(
        decode::odd_float(decode::weight_at<double>(p.weight, at.quotient, at.remainder)));
  }
}

template <class T>
struct QuantizeOperands {
  const T* x;
  void *codes, *scales, *zeros;
  DType codes_dtype, scales_dtype;
  int64_t x_row, codes_row, scales_row, zeros_row;
  int64_t rows, columns, group_rows, group_columns;
  Divisor across;  // groups along columns
  quantisers::Grid grid;
};

struct BlockExtremes {
  float low[kThreads], high[kThreads];
};

// A block owns a group.
template <class T>
__global__ void __launch_bounds__(kThreads) quantize_group(QuantizeOperands<T> p) {
  wait_for_previous_kernel();
  BlockExtremes& shared = block_shared<BlockExtremes>();
  const int thread = static_cast<int>(thread_index().x);
  const Division group = divide(block_index().x, p.across);
  const int64_t row0 = group.quotient * p.group_rows, column0 = group.remainder * p.group_columns;
  const int64_t row1 = row0 + p.group_rows < p.rows ? row0 + p.group_rows : p.rows;
  const int64_t column1 =
      column0 + p.group_columns < p.columns ? column0 + p.group_columns : p.columns;
  const int64_t width = column1 - column0, count = (row1 - row0) * width;
  quantisers::Extremes values;
  for (int64_t i = thread; i < count; i += kThreads) {
    values.take(to_float(p.x[(row0 + i / width) * p.x_row + column0 + i % width]));
  }
  for (int half = kThreads / 2; half > 0; half /= 2) {
    shared.low[thread] = values.low;
    shared.high[thread] = values.high;
    block_barrier();
    if (thread < half) {
      values.take(shared.low[thread + half]);
      values.take(shared.high[thread + half]);
    }
    block_barrier();
  }
  if (thread == 0) {
    shared.low[0] = values.low;
    shared.high[0] = values.high;
  }
  block_barrier();
  const quantisers::Extremes all{shared.low[0], shared.high[0]};
  const int64_t scale_at = group.quotient * p.scales_row + group.remainder;
  float scale = 0, zero = 0;
  if (p.grid.rule == ScaleRule::shared_exponent) {
    const int exponent = quantisers::exponent_of(p.grid, all);
    scale = quantisers::power_of(exponent);
    if (thread == 0) static_cast<uint8_t*>(p.scales)[scale_at] = static_cast<uint8_t>(exponent);
  } else {
    const float exact = quantisers::scale_of(p.grid, all);
    scale = p.scales_dtype == DType::f16    ? to_float(from_float<Float16>(exact))
            : p.scales_dtype == DType::bf16 ? to_float(from_float<BFloat16>(exact))
                                            : exact;
    if (thread == 0) store_number(p.scales_dtype, p.scales, scale_at, {false, 0, scale});
  }
  if (p.grid.rule == ScaleRule::asymmetric) {
    zero = quantisers::zero_of(p.grid, all, scale);
    if (thread == 0) {
      store_number(p.codes_dtype, p.zeros, group.quotient * p.zeros_row + group.remainder,
                   {false, 0, zero});
    }
  }
  for (int64_t i = thread; i < count; i += kThreads) {
    const int64_t row = row0 + i / width, column = column0 + i % width;
    const float x = to_float(p.x[row * p.x_row + column]);
    store_number(p.codes_dtype, p.codes, row * p.codes_row + column,
                 {false, 0, quantisers::code_of(p.grid, x, scale, zero)});
  }
}

template <class T>
struct QuantisedOperands {
  PackedWeight weight;
  T* out;
  Rows out_rows;
  const void* x;
  DType x_dtype;
  Rows x_rows;
  const void* x_scales;  // null: none
  DType x_scales_dtype;
  Rows x_scales_rows;
  const T* bias;  // null: none
  int64_t rows, columns, inner, batches;

  __device__ float factor(int64_t row) const {
    return decode::number_at<float>(x_scales_dtype, x_scales, x_scales_rows.offset(row));
  }
  __device__ void put(int64_t row, int64_t column, float value) const {
    if (bias) value += to_float(bias[column]);
    out[out_rows.offset(row) + column] = from_float<T>(value);
  }

  struct Product {
    const QuantisedOperands& p;

    __device__ float left(int64_t row, int64_t k) const {
      return decode::number_at<float>(p.x_dtype, p.x, p.x_rows.offset(row) + k);
    }
    __device__ float right(int64_t k, int64_t column) const {
      return decode::weight_at<float>(p.weight, column, k);
    }
    __device__ void finish(int64_t row, int64_t column, float sum) const {
      p.put(row, column, p.x_scales ? sum * p.factor(row) : sum);
    }
  };
  __device__ Product of(int64_t) const { return {*this}; }
  __device__ bool right_along_inner() const { return !weight.layout.by_input; }
};

// A thread makes a result: exact sums of codes.
template <class T>
__global__ void __launch_bounds__(kThreads) whole_products(QuantisedOperands<T> p) {
  wait_for_previous_kernel();
  const int64_t i = int64_t{kThreads} * block_index().x + thread_index().x;
  if (i >= p.rows * p.columns) return;
  const int64_t row = i / p.columns, n = i % p.columns;
  const int8_t* x = static_cast<const int8_t*>(p.x) + p.x_rows.offset(row);
  const bool has_zeros = p.weight.layout.zeros != ZeroType::none;
  const float zero = has_zeros ? decode::zero_at<float>(p.weight, n, 0) : 0.0f;
  int32_t sum = 0;
  for (int64_t k = 0; k < p.inner; ++k) {
    sum += x[k] * static_cast<int32_t>(decode::code_at<float>(p.weight, n, k) - zero);
  }
  const float scaled = static_cast<float>(sum) * p.factor(row);
  p.put(row, n, scaled * decode::scale_at<float>(p.weight, n, 0));
}

}  // namespace

void GpuOps::do_dequantize(const Tensor& out, const QuantisedWeight& weight) {
  const PackedWeight codes = checked_weight(OpId::dequantize, weight, stream(), id_error());
  if (out.numel() == 0) return;
  with_storage("dequantize", out.dtype(), [&]<class T>(T) {
    const DecodedOperands<T> p{codes, out.data<T>(), out.stride(0), Divisor(out.dim(1)),
                               divisible("dequantize", out.numel())};
    launch_overlapped<decode_weight<T>>("dequantize", {grid_for(p.total, kThreads)}, {kThreads}, 0,
                                        stream(), p);
  });
}

void GpuOps::do_quantize(const QuantizeCall& call) {
  if (call.scales.numel() == 0) return;
  require<Unsupported>(call.scales.dtype() != DType::f64, "quantize", "scales is f64 on a GPU");
  with_storage("quantize", call.x.dtype(), [&]<class T>(T) {
    const bool has_zeros = call.zeros.defined();
    const QuantizeOperands<T> p{call.x.data<T>(),
                                call.codes.raw(),
                                call.scales.raw(),
                                has_zeros ? call.zeros.raw() : nullptr,
                                call.codes.dtype(),
                                call.scales.dtype(),
                                call.x.stride(0),
                                call.codes.stride(0),
                                call.scales.stride(0),
                                has_zeros ? call.zeros.stride(0) : 0,
                                call.x.dim(0),
                                call.x.dim(1),
                                call.group_rows,
                                call.group_columns,
                                Divisor(call.scales.dim(1)),
                                quantisers::grid_of(call.codes.dtype(), call.rule, call.divisor)};
    const unsigned groups = grid_of_rows("quantize", call.scales.numel());
    launch_overlapped<quantize_group<T>>("quantize", {groups}, {kThreads}, 0, stream(), p);
  });
}

void GpuOps::do_quantised_linear(const QuantisedLinearCall& call) {
  const char* op = call.row.name;
  const PackedWeight weight =
      checked_weight(OpId::quantised_linear, call.weight, stream(), id_error());
  if (call.out.numel() == 0) return;
  if (reads_words(call) && choose("one_row")) return multiply_words(call, stream());
  with_storage(op, call.out.dtype(), [&]<class T>(T) {
    QuantisedOperands<T> p{};
    p.weight = weight;
    p.out = call.out.data<T>();
    p.out_rows = rows_of(op, call.out);
    p.x = call.x.raw();
    p.x_dtype = call.x.dtype();
    p.x_rows = rows_of(op, call.x);
    if (call.x_scales.defined()) {
      p.x_scales = call.x_scales.raw();
      p.x_scales_dtype = call.x_scales.dtype();
      p.x_scales_rows = rows_of(op, call.x_scales);
    }
    p.bias = call.bias.defined() ? call.bias.data<T>() : nullptr;
    p.rows = p.out_rows.count;
    p.columns = weight.rows;
    p.inner = weight.columns;
    p.batches = 1;
    if (!call.of_whole_numbers()) {
      settle_for("tiles");
      return launch_product_tiles(op, stream(), p);
    }
    settle_for("codes");
    const int64_t results = divisible(op, call.out.numel());
    launch_overlapped<whole_products<T>>(op, {grid_for(results, kThreads)}, {kThreads}, 0, stream(),
                                         p);
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
