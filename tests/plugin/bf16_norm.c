/* RMSNorm of bfloat16: rounds as eager code does (ROUNDS_INSIDE=1) or at the output alone, and
 * promises one or the other (FUSED). */
#include <math.h>
#include <string.h>

#include "kernels/plugin.h"

static float widened(uint16_t x) {
  const uint32_t bits = (uint32_t)x << 16;
  float out;
  memcpy(&out, &bits, sizeof out);
  return out;
}

static uint16_t rounded(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void norm_row(uint16_t* out, const uint16_t* x, const uint16_t* weight, int64_t columns,
                     const plumb_params* p) {
  double squares = 0;
  for (int64_t c = 0; c < columns; ++c) squares += (double)widened(x[c]) * widened(x[c]);
  const double root = sqrt(squares / (double)columns + p->eps);
  for (int64_t c = 0; c < columns; ++c) {
    float n = (float)(widened(x[c]) / root);
    if (ROUNDS_INSIDE && p->weight_after_rounding) n = widened(rounded(n));
    out[c] = rounded(((float)p->weight_offset + widened(weight[c])) * n);
  }
}

static int rms_norm(const plumb_call* call) {
  const plumb_tensor *out = &call->tensors[0], *x = &call->tensors[1];
  if (x->dtype != PLUMB_BF16 || x->rank != 3) return PLUMB_UNSUPPORTED;
  for (int64_t i = 0; i < x->shape[0]; ++i) {
    for (int64_t j = 0; j < x->shape[1]; ++j) {
      norm_row((uint16_t*)out->data + i * out->stride[0] + j * out->stride[1],
               (const uint16_t*)x->data + i * x->stride[0] + j * x->stride[1],
               call->tensors[2].data, x->shape[2], &call->params);
    }
  }
  return PLUMB_OK;
}

static const plumb_op kOps[] = {{"rms_norm", rms_norm, {24, 0, FUSED}}};
static const plumb_plugin kPlugin = {PLUMB_PLUGIN_VERSION, "bf16_norm", "cpu", NULL, 1, kOps};

const plumb_plugin* plumb_plugin_entry(void) { return &kPlugin; }
