/* RMSNorm of float tensors, right or (EPS_INSIDE_ROOT=0) with eps outside the root. */
#include <math.h>
#include <stdio.h>

#include "kernels/plugin.h"

static int rms_norm(const plumb_call* call) {
  const plumb_tensor *out = &call->tensors[0], *x = &call->tensors[1], *weight = &call->tensors[2];
  const plumb_params* p = &call->params;
  if (x->dtype != PLUMB_F32) {
    snprintf(call->error, (size_t)call->error_bytes, "only f32 is implemented");
    return PLUMB_UNSUPPORTED;
  }
  if (x->rank > 3) return PLUMB_UNSUPPORTED;
  /* Up to two outer axes of any stride. */
  const int64_t columns = x->shape[x->rank - 1];
  const int64_t inner = x->rank > 1 ? x->shape[x->rank - 2] : 1;
  const int64_t outer = x->rank > 2 ? x->shape[0] : 1;
  const float* w = weight->data;
  for (int64_t row = 0; row < outer * inner; ++row) {
    const int64_t i = row / inner, j = row % inner;
    const float* in = x->data;
    float* to = out->data;
    if (x->rank > 1) {
      in += j * x->stride[x->rank - 2];
      to += j * out->stride[out->rank - 2];
    }
    if (x->rank > 2) {
      in += i * x->stride[0];
      to += i * out->stride[0];
    }
    double squares = 0;
    for (int64_t c = 0; c < columns; ++c) squares += (double)in[c] * in[c];
    const double mean = squares / (double)columns;
    const double root = EPS_INSIDE_ROOT ? sqrt(mean + p->eps) : sqrt(mean) + p->eps;
    for (int64_t c = 0; c < columns; ++c) to[c] = (float)((p->weight_offset + w[c]) * (in[c] / root));
  }
  return PLUMB_OK;
}

static const plumb_op kOps[] = {{"rms_norm", rms_norm, {24, 0, 0}}};
static const plumb_plugin kPlugin = {PLUMB_PLUGIN_VERSION, "my_norm", "cpu", NULL, 1, kOps};

const plumb_plugin* plumb_plugin_entry(void) { return &kPlugin; }
