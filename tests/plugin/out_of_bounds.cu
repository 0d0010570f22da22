// Right GPU kernels of float tensors, each of which can touch memory outside its operands in ways
// that no result depends on: the environment variable OUT_OF_BOUNDS names the one, and its line.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "kernels/gpu/gpu.h"
#include "kernels/plugin.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr unsigned kThreads = 64;
constexpr int64_t kBlock = 1024;  // what a kernel loads at once, wider than any row here

enum Fault { none, before, after, row_beyond, tail, write_before, write_after, gemm, turning, top };
constexpr std::string_view kNames[] = {"none",   "before",       "after",       "row_beyond",
                                       "tail",   "write_before", "write_after", "gemm_tail",
                                       "rotary", "softmax"};

Fault chosen() {
  const char* name = std::getenv("OUT_OF_BOUNDS");
  int at = 0;
  for (std::string_view known : kNames) {
    if (name && known == name) return static_cast<Fault>(at);
    ++at;
  }
  return none;
}

// Never true; the compiler does not know it.
__device__ bool odd(float v) { return v == 12345.0f; }

__global__ void norm(float* out, const float* x, const float* w, int64_t rows, int64_t columns,
                     float eps, float offset, Fault fault) {
  const int64_t row = block_index().x, t = thread_index().x;
  const float* in = x + row * columns;
  float squares = 0;
  for (int64_t c = 0; c < columns; ++c) squares += in[c] * in[c];
  const float factor = reciprocal_sqrt(squares / static_cast<float>(columns) + eps);
  for (int64_t c = t; c < columns; c += kThreads)
    out[row * columns + c] = (offset + w[c]) * (in[c] * factor);
  if (row + 1 < rows) return;
  float& first = out[row * columns];
  if (t != 0) return;
  if (fault == before && odd(x[-1])) first = 1;                  // fault: before
  if (fault == after && odd(w[columns])) first = 1;              // fault: after
  if (fault == row_beyond && odd(in[columns + 100])) first = 1;  // fault: row_beyond
  for (int64_t c = 0; fault == tail && c < kBlock; ++c)
    if (odd(in[c]) && c < columns) first = 1;       // fault: tail
  if (fault == write_before) out[-1] = 0;           // fault: write_before
  if (fault == write_after) (&first)[columns] = 0;  // fault: write_after
}

__global__ void product(float* out, const float* x, const float* w, const float* bias, int64_t n,
                        int64_t k, Fault fault) {
  const int64_t row = block_index().x;
  for (int64_t c = thread_index().x; c < n; c += kThreads) {
    float sum = 0;
    for (int64_t i = 0; i < k; ++i) sum += x[row * k + i] * w[c * k + i];
    if (fault == gemm && odd(w[(c + 1) * k])) sum = 0;  // fault: gemm_tail
    out[row * n + c] = bias ? sum + bias[c] : sum;
  }
}

__global__ void turn(float* out, const float* x, const float* cos, const float* sin,
                     plumb_tensor to, plumb_tensor from, plumb_tensor table, Fault fault) {
  const int64_t t = block_index().x, h = block_index().y, b = block_index().z;
  const int64_t r = table.shape[2];
  const float* in = x + b * from.stride[0] + h * from.stride[1] + t * from.stride[2];
  float* result = out + b * to.stride[0] + h * to.stride[1] + t * to.stride[2];
  const int64_t at = (table.shape[0] > 1 ? b : 0) * table.stride[0] + t * table.stride[1];
  for (int64_t c = thread_index().x; c < from.shape[3]; c += kThreads) {
    const float other = c < r / 2 ? -in[c + r / 2] : in[c - r / 2];
    result[c] = c < r ? in[c] * cos[at + c] + other * sin[at + c] : in[c];
    if (fault == turning && odd(cos[at + c + 1])) result[c] = 0;  // fault: rotary
  }
}

__global__ void normalise(float* out, const float* x, int64_t columns, Fault fault) {
  const int64_t start = block_index().x * columns;
  if (thread_index().x != 0) return;
  float highest = x[start], sum = 0;
  for (int64_t c = 0; c < columns; ++c) highest = x[start + c] > highest ? x[start + c] : highest;
  if (fault == top && odd(x[start + columns])) highest = 0;  // fault: softmax
  for (int64_t c = 0; c < columns; ++c) sum += std::exp(x[start + c] - highest);
  for (int64_t c = 0; c < columns; ++c) out[start + c] = std::exp(x[start + c] - highest) / sum;
}

unsigned rows_of(const plumb_tensor& t) {
  int64_t rows = 1;
  for (int axis = 0; axis + 1 < t.rank; ++axis) rows *= t.shape[axis];
  return static_cast<unsigned>(rows);
}
int64_t columns_of(const plumb_tensor& t) { return t.shape[t.rank - 1]; }
float* data(const plumb_call* call, int i) { return static_cast<float*>(call->tensors[i].data); }

// launch() throws; nothing may leave a plugin.
template <void (*Body)(const plumb_call*)>
int guarded(const plumb_call* call) {
  if (call->tensors[1].dtype != PLUMB_F32) return PLUMB_UNSUPPORTED;
  try {
    Body(call);
    return PLUMB_OK;
  } catch (const std::exception& error) {
    std::snprintf(call->error, static_cast<size_t>(call->error_bytes), "%s", error.what());
    return PLUMB_FAILED;
  }
}

void rms_norm(const plumb_call* call) {
  const plumb_tensor& x = call->tensors[1];
  launch<norm>("rms_norm", {rows_of(x)}, {kThreads}, 0, static_cast<Stream>(call->stream),
               data(call, 0), data(call, 1), data(call, 2), int64_t{rows_of(x)}, columns_of(x),
               static_cast<float>(call->params.eps), static_cast<float>(call->params.weight_offset),
               chosen());
}

void linear(const plumb_call* call) {
  const plumb_tensor &out = call->tensors[0], &x = call->tensors[1];
  launch<product>("linear", {rows_of(x)}, {kThreads}, 0, static_cast<Stream>(call->stream),
                  data(call, 0), data(call, 1), data(call, 2), data(call, 3), columns_of(out),
                  columns_of(x), chosen());
}

void rotary(const plumb_call* call) {
  const plumb_tensor &out = call->tensors[0], &x = call->tensors[1];
  const Dim grid{static_cast<unsigned>(x.shape[2]), static_cast<unsigned>(x.shape[1]),
                 static_cast<unsigned>(x.shape[0])};
  launch<turn>("rotary", grid, {kThreads}, 0, static_cast<Stream>(call->stream), data(call, 0),
               data(call, 1), data(call, 2), data(call, 3), out, x, call->tensors[2], chosen());
}

void softmax(const plumb_call* call) {
  launch<normalise>("softmax", {rows_of(call->tensors[1])}, {kThreads}, 0,
                    static_cast<Stream>(call->stream), data(call, 0), data(call, 1),
                    columns_of(call->tensors[1]), chosen());
}

}  // namespace
}  // namespace plumb::PLUMB_GPU_VENDOR

extern "C" const plumb_plugin* plumb_plugin_entry() {
  using namespace plumb::PLUMB_GPU_VENDOR;
  static const plumb_op ops[] = {{"rms_norm", guarded<rms_norm>, {24, 0, 0}},
                                 {"linear", guarded<linear>, {24, 0, 0}},
                                 {"rotary", guarded<rotary>, {24, 0, 0}},
                                 {"softmax", guarded<softmax>, {24, 0, 0}}};
  static const plumb_plugin plugin = {
      PLUMB_PLUGIN_VERSION, "out_of_bounds", PLUMB_DEVICE, nullptr, 4, ops};
  return &plugin;
}
