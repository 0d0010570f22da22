/* A whole device of its own: host memory, and add, mul and rms_norm of contiguous float tensors. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/plugin.h"

static int allocate(void** data, int64_t bytes) {
  return posix_memalign(data, 64, (size_t)bytes) == 0 ? PLUMB_OK : PLUMB_FAILED;
}

static int copy_bytes(void* to, const void* from, int64_t bytes) {
  memcpy(to, from, (size_t)bytes);
  return PLUMB_OK;
}

static int fill(void* to, uint8_t byte, int64_t bytes) {
  memset(to, byte, (size_t)bytes);
  return PLUMB_OK;
}

static int synchronize(void) { return PLUMB_OK; } /* ops have finished when they return */

static int64_t elements(const plumb_tensor* t) {
  int64_t count = 1;
  for (int32_t axis = 0; axis < t->rank; ++axis) count *= t->shape[axis];
  return count;
}

/* Whether every tensor of the call is a contiguous float tensor; says so if not. */
static int takes(const plumb_call* call) {
  for (int32_t i = 0; i < call->count; ++i) {
    const plumb_tensor* t = &call->tensors[i];
    int64_t stride = 1;
    int contiguous = 1;
    for (int32_t axis = t->rank - 1; axis >= 0; --axis) {
      contiguous &= t->shape[axis] == 1 || t->stride[axis] == stride;
      stride *= t->shape[axis];
    }
    if (t->dtype == PLUMB_F32 && contiguous) continue;
    snprintf(call->error, (size_t)call->error_bytes, "tensor %d is not contiguous f32", (int)i);
    return 0;
  }
  return 1;
}

static int add(const plumb_call* call) {
  if (!takes(call)) return PLUMB_UNSUPPORTED;
  float* out = call->tensors[0].data;
  const float *a = call->tensors[1].data, *b = call->tensors[2].data;
  for (int64_t i = 0; i < elements(&call->tensors[0]); ++i) out[i] = a[i] + b[i];
  return PLUMB_OK;
}

static int mul(const plumb_call* call) {
  if (!takes(call)) return PLUMB_UNSUPPORTED;
  float* out = call->tensors[0].data;
  const float *a = call->tensors[1].data, *b = call->tensors[2].data;
  for (int64_t i = 0; i < elements(&call->tensors[0]); ++i) out[i] = a[i] * b[i];
  return PLUMB_OK;
}

static int rms_norm(const plumb_call* call) {
  if (!takes(call)) return PLUMB_UNSUPPORTED;
  const plumb_tensor* x = &call->tensors[1];
  const int64_t columns = x->shape[x->rank - 1];
  const float* weight = call->tensors[2].data;
  for (int64_t start = 0; start < elements(x); start += columns) {
    const float* in = (const float*)x->data + start;
    float* out = (float*)call->tensors[0].data + start;
    double squares = 0;
    for (int64_t c = 0; c < columns; ++c) squares += (double)in[c] * in[c];
    const float root = (float)sqrt(squares / (double)columns + call->params.eps);
    for (int64_t c = 0; c < columns; ++c) {
      out[c] = ((float)call->params.weight_offset + weight[c]) * (in[c] / root);
    }
  }
  return PLUMB_OK;
}

static const plumb_op kOps[] = {
    {"add", add, {24, 0, 0}}, {"mul", mul, {24, 0, 0}}, {"rms_norm", rms_norm, {24, 0, 0}}};
static const plumb_memory kMemory = {allocate, free, copy_bytes, copy_bytes, fill, synchronize};
static const plumb_plugin kPlugin = {PLUMB_PLUGIN_VERSION, "tiny", "tiny:0", &kMemory, 3, kOps};

const plumb_plugin* plumb_plugin_entry(void) { return &kPlugin; }
