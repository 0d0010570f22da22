/* A linear layer of bfloat16 whose products are summed in PARTS, which are added in bfloat16: as
 * rows of a weight on several devices are. GAIN: of the result, 1 where it is right. */
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

static uint16_t reduced(const uint16_t* x, const uint16_t* row, int64_t terms) {
  const int64_t of_part = (terms + PARTS - 1) / PARTS;
  float total = 0;
  for (int64_t begin = 0; begin < terms; begin += of_part) {
    float part = 0;
    for (int64_t k = begin; k < begin + of_part && k < terms; ++k) {
      part += widened(x[k]) * widened(row[k]);
    }
    total = widened(rounded(total + widened(rounded(part))));
  }
  return rounded(total * (float)GAIN);
}

static int linear(const plumb_call* call) {
  const plumb_tensor *out = &call->tensors[0], *x = &call->tensors[1], *w = &call->tensors[2];
  if (x->dtype != PLUMB_BF16 || x->rank != 3 || call->tensors[3].data) return PLUMB_UNSUPPORTED;
  for (int64_t i = 0; i < x->shape[0]; ++i) {
    for (int64_t j = 0; j < x->shape[1]; ++j) {
      const uint16_t* from = (const uint16_t*)x->data + i * x->stride[0] + j * x->stride[1];
      uint16_t* to = (uint16_t*)out->data + i * out->stride[0] + j * out->stride[1];
      for (int64_t n = 0; n < w->shape[0]; ++n) {
        to[n] = reduced(from, (const uint16_t*)w->data + n * w->stride[0], w->shape[1]);
      }
    }
  }
  return PLUMB_OK;
}

static const plumb_op kOps[] = {{"linear", linear, {24, 0, 0}}};
static const plumb_plugin kPlugin = {PLUMB_PLUGIN_VERSION, "linear_16", "cpu", NULL, 1, kOps};

const plumb_plugin* plumb_plugin_entry(void) { return &kPlugin; }
