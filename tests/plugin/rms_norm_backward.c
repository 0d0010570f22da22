/* Gradients of RMSNorm in float, right but for one of every CALLS calls: WRONG_CALL, whose d_x is
 * 5 % too large. */
#include <math.h>
#include <stdio.h>

#include "kernels/plugin.h"

/* Row n of a dense tensor. */
static float* row_of(const plumb_tensor* t, int64_t n) {
  return (float*)t->data + n * t->shape[t->rank - 1];
}

static int is_dense(const plumb_tensor* t) {
  int64_t step = 1;
  for (int axis = t->rank - 1; axis >= 0; --axis) {
    if (t->shape[axis] > 1 && t->stride[axis] != step) return 0;
    step *= t->shape[axis];
  }
  return 1;
}

static int run(const plumb_call* call) {
  static int calls;
  const plumb_tensor *d_x = &call->tensors[0], *d_weight = &call->tensors[1], *x = &call->tensors[2],
                     *weight = &call->tensors[3], *d_out = &call->tensors[4];
  if (x->dtype != PLUMB_F32 || !is_dense(d_x) || !is_dense(x) || !is_dense(d_out)) {
    snprintf(call->error, (size_t)call->error_bytes, "only dense f32 is implemented");
    return PLUMB_UNSUPPORTED;
  }
  const double factor = calls++ % CALLS == WRONG_CALL ? 1.05 : 1;
  const int64_t columns = x->shape[x->rank - 1];
  int64_t rows = 1;
  for (int axis = 0; axis + 1 < x->rank; ++axis) rows *= x->shape[axis];
  const float* w = weight->data;
  double* sums = call->scratch(call, columns * (int64_t)sizeof(double));
  if (!sums) return PLUMB_FAILED;
  for (int64_t c = 0; c < columns; ++c) sums[c] = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const float *in = row_of(x, row), *g = row_of(d_out, row);
    float* to = row_of(d_x, row);
    double squares = 0, mean = 0;
    for (int64_t c = 0; c < columns; ++c) squares += (double)in[c] * in[c];
    const double r = 1 / sqrt(squares / (double)columns + call->params.eps);
    for (int64_t c = 0; c < columns; ++c) {
      mean += (call->params.weight_offset + w[c]) * g[c] * in[c] * r / (double)columns;
      sums[c] += g[c] * in[c] * r;
    }
    for (int64_t c = 0; c < columns; ++c) {
      const double of_norm = (call->params.weight_offset + w[c]) * g[c];
      to[c] = (float)(factor * r * (of_norm - in[c] * r * mean));
    }
  }
  for (int64_t c = 0; d_weight->data && c < columns; ++c) {
    ((float*)d_weight->data)[c] = (float)sums[c];
  }
  return PLUMB_OK;
}

static const plumb_op kOps[] = {{"rms_norm_backward", run, {24, 0, 0}}};
static const plumb_plugin kPlugin = {PLUMB_PLUGIN_VERSION, "norm_backward", "cpu", NULL, 1, kOps};

const plumb_plugin* plumb_plugin_entry(void) { return &kPlugin; }
