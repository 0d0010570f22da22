// rotary_table and rotary. Roundings: three per rotated element, as apply_rotary_pos_emb in storage
// dtype.
//
// rotary: a thread owns one pair of a row of x [B, H, T, D]; the rest of the row is copied by the
// same block.
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    rotary_table_elements(T* cos_out, T* sin_out, const int64_t* positions, const float* inv_freq,
                          int64_t rows, int64_t half, float scaling) {
  const int64_t total = rows * 2 * half, step = int64_t{kThreads} * grid_size().x;
  for (int64_t i = int64_t{kThreads} * block_index().x + thread_index().x; i < total; i += step) {
    const int64_t row = i / (2 * half), pair = i % (2 * half) % half;
    const float angle = static_cast<float>(positions[row]) * inv_freq[pair];
    cos_out[i] = from_float<T>(cosf(angle) * scaling);
    sin_out[i] = from_float<T>(sinf(angle) * scaling);
  }
}

template <class T>
struct RotaryOperands {
  T* out;
  const T* x;
  const T* cos_table;
  const T* sin_table;
  int64_t out_stride[3], x_stride[3];  // batch, head, token
  int64_t table_batch_stride, table_token_stride;
  int64_t heads, tokens, rows, width, rotated;
  bool halves;
};

template <class T>
__global__ void __launch_bounds__(kThreads) rotary_pairs(RotaryOperands<T> p) {
  const int64_t pairs = p.rotated / 2, work = pairs + (p.width - p.rotated);
  const int64_t total = p.rows * work, step = int64_t{kThreads} * grid_size().x;
  for (int64_t i = int64_t{kThreads} * block_index().x + thread_index().x; i < total; i += step) {
    const int64_t row = i / work, item = i % work;
    const int64_t t = row % p.tokens, h = row / p.tokens % p.heads, b = row / p.tokens / p.heads;
    const T* x = p.x + b * p.x_stride[0] + h * p.x_stride[1] + t * p.x_stride[2];
    T* out = p.out + b * p.out_stride[0] + h * p.out_stride[1] + t * p.out_stride[2];
    if (item >= pairs) {
      const int64_t column = p.rotated + item - pairs;
      out[column] = x[column];
      continue;
    }
    const int64_t table = b * p.table_batch_stride + t * p.table_token_stride;
    const int64_t first = p.halves ? item : 2 * item, second = p.halves ? item + pairs : first + 1;
    const int64_t table_second = p.halves ? item + pairs : item;
    const float a = to_float(x[first]), c = to_float(x[second]);
    const float cos_a = rounded<T>(a * to_float(p.cos_table[table + item]));
    const float sin_c = rounded<T>(c * to_float(p.sin_table[table + item]));
    const float cos_c = rounded<T>(c * to_float(p.cos_table[table + table_second]));
    const float sin_a = rounded<T>(a * to_float(p.sin_table[table + table_second]));
    out[first] = from_float<T>(cos_a - sin_c);
    out[second] = from_float<T>(cos_c + sin_a);
  }
}

}  // namespace

void GpuOps::do_rotary_table(const Tensor& cos, const Tensor& sin, const Tensor& positions,
                             const Tensor& inv_freq, double attention_scaling) {
  if (cos.numel() == 0) return;
  require<Unsupported>(cos.contiguous() && sin.contiguous() && positions.contiguous(),
                       "rotary_table", "cos, sin and positions must be contiguous");
  settle_for("elements");
  with_storage("rotary_table", cos.dtype(), [&]<class T>(T) {
    launch<rotary_table_elements<T>>(
        "rotary_table", {grid_for(cos.numel(), kThreads)}, {kThreads}, 0, stream(), cos.data<T>(),
        sin.data<T>(), static_cast<const int64_t*>(positions.data<int64_t>()),
        static_cast<const float*>(inv_freq.data<float>()), positions.numel(), inv_freq.dim(0),
        static_cast<float>(attention_scaling));
  });
}

void GpuOps::do_rotary(const Tensor& out, const Tensor& x, const Tensor& cos, const Tensor& sin,
                       RotaryStyle style) {
  if (x.numel() == 0) return;
  require<Unsupported>(cos.stride(0) == sin.stride(0) && cos.stride(1) == sin.stride(1), "rotary",
                       "cos and sin must have equal strides");
  settle_for("pairs");
  with_storage("rotary", x.dtype(), [&]<class T>(T) {
    RotaryOperands<T> p{};
    p.out = out.data<T>();
    p.x = x.data<T>();
    p.cos_table = cos.data<T>();
    p.sin_table = sin.data<T>();
    for (int axis = 0; axis < 3; ++axis) {
      p.out_stride[axis] = out.stride(axis);
      p.x_stride[axis] = x.stride(axis);
    }
    p.table_batch_stride = cos.stride(0);
    p.table_token_stride = cos.stride(1);
    p.heads = x.dim(1);
    p.tokens = x.dim(2);
    p.rows = x.dim(0) * x.dim(1) * x.dim(2);
    p.width = x.dim(3);
    p.rotated = cos.dim(2);
    p.halves = style == RotaryStyle::half;
    const int64_t work = p.rows * (p.width - p.rotated / 2);
    launch<rotary_pairs<T>>("rotary", {grid_for(work, kThreads)}, {kThreads}, 0, stream(), p);
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
