// The kernels of plain_cuda.cu as a plugin: all that one adds to CUDA that is there already.
#include "kernels/plugin.h"
#include "plain_cuda.cu"

static int rows_of(const plumb_tensor& t) {
  int64_t rows = 1;
  for (int axis = 0; axis + 1 < t.rank; ++axis) rows *= t.shape[axis];
  return static_cast<int>(rows);
}
static int columns_of(const plumb_tensor& t) { return static_cast<int>(t.shape[t.rank - 1]); }

template <typename T>
static T* data(const plumb_call* call, int i) {
  return static_cast<T*>(call->tensors[i].data);
}

template <typename T>
static int norm(const plumb_call* call) {
  const plumb_params& p = call->params;
  const plumb_tensor& x = call->tensors[1];
  const auto error =
      rms_norm(data<T>(call, 0), data<T>(call, 1), data<T>(call, 2), rows_of(x), columns_of(x),
               static_cast<float>(p.eps), static_cast<float>(p.weight_offset),
               p.weight_after_rounding != 0, static_cast<cudaStream_t>(call->stream));
  return error == cudaSuccess ? PLUMB_OK : PLUMB_FAILED;
}

static int run_rms_norm(const plumb_call* call) {
  switch (call->tensors[1].dtype) {
    case PLUMB_F32: return norm<float>(call);
    case PLUMB_F16: return norm<__half>(call);
    case PLUMB_BF16: return norm<__nv_bfloat16>(call);
    default: return PLUMB_UNSUPPORTED;
  }
}

static int run_linear(const plumb_call* call) {
  const plumb_tensor &out = call->tensors[0], &x = call->tensors[1];
  if (x.dtype != PLUMB_F32 || call->tensors[3].data) return PLUMB_UNSUPPORTED;
  matmul_nt(data<float>(call, 1), data<float>(call, 2), data<float>(call, 0), rows_of(x),
            columns_of(out), columns_of(x));
  return PLUMB_OK;
}

static int run_softmax(const plumb_call* call) {
  const plumb_tensor& x = call->tensors[1];
  if (x.dtype != PLUMB_F32) return PLUMB_UNSUPPORTED;
  softmax(data<float>(call, 0), data<float>(call, 1), rows_of(x), columns_of(x),
          static_cast<cudaStream_t>(call->stream));
  return PLUMB_OK;
}

extern "C" const plumb_plugin* plumb_plugin_entry(void) {
  static const plumb_op ops[] = {{"rms_norm", run_rms_norm, {24, 0, 0}},
                                 {"linear", run_linear, {24, 0, 0}},
                                 {"softmax", run_softmax, {24, 0, 0}}};
  static const plumb_plugin plugin = {
      PLUMB_PLUGIN_VERSION, "plain_cuda", PLUMB_DEVICE, nullptr, 3, ops};
  return &plugin;
}
