/* Plugins that are wrong in one way each; CASE says which. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/plugin.h"

enum {
  kVersion = 1, kUnknownOp, kNoRun, kFails, kSilent, kOverrun, kTwice, kOracle, kNull, kBits,
  kCrashes, kExits, kHangs, kUnsupported, kNan, kLoose, kEntryAborts, kEntryExits, kEntryHangs,
  kHangsLater
};

static void hang(void) {
  for (;;) pause();
}

static int64_t elements(const plumb_tensor* t) {
  int64_t count = 1;
  for (int32_t axis = 0; axis < t->rank; ++axis) count *= t->shape[axis];
  return count;
}

/* A right RMSNorm of contiguous float tensors. */
static void norm(const plumb_call* call) {
  const plumb_tensor *out = &call->tensors[0], *x = &call->tensors[1], *weight = &call->tensors[2];
  const int64_t columns = x->shape[x->rank - 1];
  for (int64_t start = 0; start < elements(x); start += columns) {
    const float *in = (const float*)x->data + start, *w = weight->data;
    float* to = (float*)out->data + start;
    double squares = 0;
    for (int64_t c = 0; c < columns; ++c) squares += (double)in[c] * in[c];
    const double root = sqrt(squares / (double)columns + call->params.eps);
    for (int64_t c = 0; c < columns; ++c) {
      to[c] = (float)((call->params.weight_offset + w[c]) * (in[c] / root));
    }
  }
}

static int run(const plumb_call* call) {
  const plumb_tensor* out = &call->tensors[0];
  if (CASE == kFails) {
    snprintf(call->error, (size_t)call->error_bytes, "no rows today");
    return PLUMB_FAILED;
  }
  if (CASE == kUnsupported) return PLUMB_UNSUPPORTED;
  if (CASE == kSilent) return 7;
  if (CASE == kCrashes) raise(SIGSEGV);
  if (CASE == kExits) exit(0);
  if (CASE == kHangs) hang();
  if (CASE == kNan) {
    memset(out->data, 0xff, (size_t)(elements(out) * (out->dtype == PLUMB_F32 ? 4 : 2)));
    return PLUMB_OK;
  }
  if (out->dtype != PLUMB_F32) return PLUMB_UNSUPPORTED;
  norm(call);
  static int calls = 0;
  if (CASE == kHangsLater && ++calls > 2) hang(); /* a checkpoint is two calls */
  if (CASE == kOverrun) memset((char*)out->data + 4 * elements(out), 0, 8);
  return PLUMB_OK;
}

static const plumb_op kOps[] = {
    {CASE == kUnknownOp ? "rms_morn" : "rms_norm", CASE == kNoRun ? NULL : run,
     {CASE == kBits ? 0 : CASE == kLoose ? 2 : 24, 0, 0}},
    {"rms_norm", run, {24, 0, 0}}};
static const plumb_plugin kPlugin = {CASE == kVersion ? 9 : PLUMB_PLUGIN_VERSION, "hostile",
                                     CASE == kOracle ? "oracle" : "cpu", NULL,
                                     CASE == kTwice ? 2 : 1, kOps};

const plumb_plugin* plumb_plugin_entry(void) {
  if (CASE == kEntryAborts) abort();
  if (CASE == kEntryExits) exit(0);
  if (CASE == kEntryHangs) hang();
  return CASE == kNull ? NULL : &kPlugin;
}
