// Convolutions: for each group of a batch row, the product of its weights, [outputs, terms], and of
// what each tap takes for each result, [terms, results], which is read where it is.
//
// product_tiles: product_tiles.h. each_result: a thread makes a result, of groups with few outputs
// (depthwise ones), whose tiles would be empty. Both add products in the same order.
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/product_tiles.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kFewOutputs = 16;

template <class T>
struct ConvOperands {
  T* out;
  int64_t out_batch, out_channel, out_row;
  const T* x;
  int64_t x_batch, x_channel, x_row;
  const T* weight;
  int64_t weight_output, weight_input, weight_row;
  int64_t weight_group;
  const T* bias;  // null: none
  Windows down, across;
  int64_t rows, columns, inner, batches;  // outputs of a group, results of a plane, terms, groups
  int64_t inputs, groups;
  Divisor taps, taps_of_row, width;

  struct Product {
    const ConvOperands& p;
    const T* weight;
    const T* x;
    T* out;
    int64_t first_output;

    __device__ float left(int64_t row, int64_t k) const {
      const Division input = divide(k, p.taps), tap = divide(input.remainder, p.taps_of_row);
      return to_float(weight[row * p.weight_output + input.quotient * p.weight_input +
                             tap.quotient * p.weight_row + tap.remainder]);
    }
    __device__ float right(int64_t k, int64_t column) const {
      const Division input = divide(k, p.taps), tap = divide(input.remainder, p.taps_of_row);
      const Division at = divide(column, p.width);
      const int64_t i = p.down.source(at.quotient, tap.quotient);
      const int64_t j = p.across.source(at.remainder, tap.remainder);
      if (i < 0 || j < 0) return 0;
      return to_float(x[input.quotient * p.x_channel + i * p.x_row + j]);
    }
    __device__ void finish(int64_t row, int64_t column, float sum) const {
      const float added = p.bias ? to_float(p.bias[first_output + row]) : 0.0f;
      const Division at = divide(column, p.width);
      out[row * p.out_channel + at.quotient * p.out_row + at.remainder] =
          from_float<T>(sum + added);
    }
  };
  __device__ Product of(int64_t z) const {
    const int64_t group = z % groups, batch = z / groups;
    return {*this, weight + group * weight_group, x + batch * x_batch + group * inputs * x_channel,
            out + batch * out_batch + group * rows * out_channel, group * rows};
  }
  __device__ bool right_along_inner() const { return false; }
};

template <class T>
__global__ void __launch_bounds__(kThreads) each_result(ConvOperands<T> p) {
  wait_for_previous_kernel();
  const int64_t i = int64_t{kThreads} * block_index().x + thread_index().x;
  if (i >= p.rows * p.columns * p.batches) return;
  const int64_t column = i % p.columns, row = i / p.columns % p.rows;
  const auto product = p.of(i / p.columns / p.rows);
  float sum = 0;
  for (int64_t k = 0; k < p.inner; ++k) {
    sum = fused_multiply_add(product.left(row, k), product.right(k, column), sum);
  }
  product.finish(row, column, sum);
}

}  // namespace

void GpuOps::do_convolve(const ConvCall& call) {
  const char* op = call.row.name;
  const Tensor &out = call.out, &x = call.x, &weight = call.weight;
  if (out.numel() == 0) return;
  with_storage(op, x.dtype(), [&]<class T>(T) {
    ConvOperands<T> p{};
    p.out = out.data<T>();
    p.out_batch = out.stride(0);
    p.out_channel = out.stride(1);
    p.out_row = out.stride(2);
    p.x = x.data<T>();
    p.x_batch = x.stride(0);
    p.x_channel = x.stride(1);
    p.x_row = x.stride(2);
    p.weight = weight.data<T>();
    p.weight_output = weight.stride(call.output_axis());
    p.weight_input = weight.stride(call.input_axis());
    p.weight_row = weight.stride(2);
    p.weight_group = weight.stride(0) * (call.transposed() ? call.inputs() : call.outputs());
    p.bias = call.bias.defined() ? call.bias.data<T>() : nullptr;
    p.down = call.windows(0);
    p.across = call.windows(1);
    p.rows = call.outputs();
    p.columns = divisible(op, out.dim(2) * out.dim(3));
    p.inner = divisible(op, call.terms());
    p.batches = x.dim(0) * call.params.groups;
    p.inputs = call.inputs();
    p.groups = call.params.groups;
    p.taps = Divisor(weight.dim(2) * weight.dim(3));
    p.taps_of_row = Divisor(weight.dim(3));
    p.width = Divisor(out.dim(3));
    if (p.rows >= kFewOutputs) return launch_product_tiles(op, stream(), p);
    const int64_t results = divisible(op, out.numel());
    launch_overlapped<each_result<T>>(op, {grid_for(results, kThreads)}, {kThreads}, 0, stream(),
                                      p);
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
