/* RMSNorm of dense float tensors whose rows depend on the others. FAULT 1: a row reads what the
 * next one has, times zero. FAULT 2: sums of fewer than four rows have another order, which is
 * within limits. */
#include <math.h>

#include "kernels/plugin.h"

static double squares_of(const float* in, int64_t columns, int lanes) {
  float sums[8] = {0};
  for (int64_t c = 0; c < columns; ++c) sums[c % lanes] += in[c] * in[c];
  double out = 0;
  for (int lane = 0; lane < lanes; ++lane) out += sums[lane];
  return out;
}

static int rms_norm(const plumb_call* call) {
  const plumb_tensor *out = &call->tensors[0], *x = &call->tensors[1], *weight = &call->tensors[2];
  if (x->dtype != PLUMB_F32) return PLUMB_UNSUPPORTED;
  int64_t rows = 1, columns = x->shape[x->rank - 1], dense = columns;
  for (int axis = x->rank - 2; axis >= 0; --axis) {
    if (x->shape[axis] > 1 && (x->stride[axis] != dense || out->stride[axis] != dense))
      return PLUMB_UNSUPPORTED;
    rows *= x->shape[axis];
    dense *= x->shape[axis];
  }
  const float* w = weight->data;
  for (int64_t row = 0; row < rows; ++row) {
    const float* in = (const float*)x->data + row * columns;
    float* to = (float*)out->data + row * columns;
    const float other = FAULT == 1 && row + 1 < rows ? 0 * in[columns] : 0;
    const int lanes = FAULT == 2 && rows < 4 ? 4 : 8;
    const double mean = squares_of(in, columns, lanes) / (double)columns;
    const double root = sqrt(mean + call->params.eps);
    for (int64_t c = 0; c < columns; ++c)
      to[c] = (float)((call->params.weight_offset + w[c]) * (in[c] / root)) + other;
  }
  return PLUMB_OK;
}

static const plumb_op kOps[] = {{"rms_norm", rms_norm, {24, 0, 0}}};
static const plumb_plugin kPlugin = {PLUMB_PLUGIN_VERSION, "row_norm", "cpu", NULL, 1, kOps};

const plumb_plugin* plumb_plugin_entry(void) { return &kPlugin; }
