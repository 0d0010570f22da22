/* Plugins that are wrong in one way each; CASE says which. */
#include <stdio.h>
#include <string.h>

#include "kernels/plugin.h"

enum { kVersion = 1, kUnknownOp, kNoRun, kFails, kSilent, kOverrun, kTwice, kOracle, kNull, kBits };

static int run(const plumb_call* call) {
  const plumb_tensor* out = &call->tensors[0];
  if (CASE == kFails) {
    snprintf(call->error, (size_t)call->error_bytes, "no rows today");
    return PLUMB_FAILED;
  }
  if (CASE == kOverrun) {
    int64_t bytes = out->dtype == PLUMB_F32 ? 4 : 2;
    for (int32_t axis = 0; axis < out->rank; ++axis) bytes *= out->shape[axis];
    memset((char*)out->data, 0, (size_t)bytes + 8);
    return PLUMB_OK;
  }
  return 7;
}

static const plumb_op kOps[] = {
    {CASE == kUnknownOp ? "rms_morn" : "rms_norm", CASE == kNoRun ? NULL : run,
     {CASE == kBits ? 0 : 24, 0, 0}},
    {"rms_norm", run, {24, 0, 0}}};
static const plumb_plugin kPlugin = {CASE == kVersion ? 9 : PLUMB_PLUGIN_VERSION, "hostile",
                                     CASE == kOracle ? "oracle" : "cpu", NULL,
                                     CASE == kTwice ? 2 : 1, kOps};

const plumb_plugin* plumb_plugin_entry(void) { return CASE == kNull ? NULL : &kPlugin; }
