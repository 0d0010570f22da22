/* Right kernels of float tensors, each of which can touch memory beside its operands in ways that
 * no result depends on: the environment variable OUT_OF_BOUNDS names the one, and its line. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/plugin.h"

enum { kBlock = 1024 }; /* what a kernel loads at once, wider than any row here */

#define READ(p) ((void)*(const volatile float*)(p))
#define WRITE(p) (*(volatile float*)(p) = 0)

static int is(const char* fault) {
  const char* chosen = getenv("OUT_OF_BOUNDS");
  return chosen && strcmp(chosen, fault) == 0;
}

static int64_t columns_of(const plumb_tensor* t) { return t->shape[t->rank - 1]; }

static int64_t rows_of(const plumb_tensor* t) {
  int64_t rows = 1;
  for (int32_t axis = 0; axis + 1 < t->rank; ++axis) rows *= t->shape[axis];
  return rows;
}

static float* row_of(const plumb_tensor* t, int64_t number) {
  float* at = t->data;
  for (int32_t axis = t->rank - 2; axis >= 0; --axis) {
    at += number % t->shape[axis] * t->stride[axis];
    number /= t->shape[axis];
  }
  return at;
}

static int rms_norm(const plumb_call* call) {
  const plumb_tensor *out = &call->tensors[0], *x = &call->tensors[1];
  if (x->dtype != PLUMB_F32) return PLUMB_UNSUPPORTED;
  const int64_t columns = columns_of(x), rows = rows_of(x);
  const float* w = call->tensors[2].data;
  for (int64_t row = 0; row < rows; ++row) {
    const float* in = row_of(x, row);
    float* to = row_of(out, row);
    double squares = 0;
    for (int64_t c = 0; c < columns; ++c) squares += (double)in[c] * in[c];
    const double root = sqrt(squares / (double)columns + call->params.eps);
    for (int64_t c = 0; c < columns; ++c)
      to[c] = (float)((call->params.weight_offset + w[c]) * (in[c] / root));
  }
  const float* last = row_of(x, rows - 1);
  if (is("before")) READ((float*)x->data - 1);      /* fault: before */
  if (is("after")) READ(w + columns);               /* fault: after */
  if (is("row_beyond")) READ(last + columns + 100); /* fault: row_beyond */
  if (is("tail")) {
    for (int64_t c = 0; c < kBlock; ++c) READ(last + c); /* fault: tail */
  }
  if (is("write_before")) WRITE((float*)out->data - 1);                 /* fault: write_before */
  if (is("write_after")) WRITE(row_of(out, rows - 1) + columns);        /* fault: write_after */
  if (is("write_input")) WRITE(last);                                   /* fault: write_input */
  if (is("null")) READ((const float*)0);
  return PLUMB_OK;
}

static int linear(const plumb_call* call) {
  const plumb_tensor *out = &call->tensors[0], *x = &call->tensors[1], *w = &call->tensors[2];
  if (x->dtype != PLUMB_F32) return PLUMB_UNSUPPORTED;
  const float* bias = call->tensors[3].data;
  for (int64_t row = 0; row < rows_of(x); ++row) {
    for (int64_t n = 0; n < columns_of(out); ++n) {
      double sum = 0;
      for (int64_t k = 0; k < columns_of(x); ++k)
        sum += (double)row_of(x, row)[k] * row_of(w, n)[k];
      row_of(out, row)[n] = (float)(bias ? (float)sum + bias[n] : sum);
    }
  }
  if (is("gemm_tail")) READ(row_of(w, w->shape[0] - 1) + w->stride[0]); /* fault: gemm_tail */
  return PLUMB_OK;
}

static int rotary(const plumb_call* call) {
  const plumb_tensor *out = &call->tensors[0], *x = &call->tensors[1], *cos = &call->tensors[2];
  const plumb_tensor* sin = &call->tensors[3];
  if (x->dtype != PLUMB_F32 || call->params.interleaved) return PLUMB_UNSUPPORTED;
  const int64_t turned = columns_of(cos), tokens = x->shape[2];
  for (int64_t row = 0; row < rows_of(x); ++row) {
    const float* in = row_of(x, row);
    float* to = row_of(out, row);
    const int64_t batch = cos->shape[0] > 1 ? row / tokens / x->shape[1] : 0;
    const int64_t at = batch * tokens + row % tokens;
    for (int64_t c = 0; c < columns_of(x); ++c) {
      const float other = c < turned / 2 ? -in[c + turned / 2] : in[c - turned / 2];
      to[c] = c < turned ? in[c] * row_of(cos, at)[c] + other * row_of(sin, at)[c] : in[c];
    }
  }
  if (is("rotary")) READ(row_of(cos, rows_of(cos) - 1) + turned); /* fault: rotary */
  return PLUMB_OK;
}

static int softmax(const plumb_call* call) {
  const plumb_tensor *out = &call->tensors[0], *x = &call->tensors[1];
  if (x->dtype != PLUMB_F32) return PLUMB_UNSUPPORTED;
  for (int64_t row = 0; row < rows_of(x); ++row) {
    const float* in = row_of(x, row);
    float highest = in[0];
    double sum = 0;
    for (int64_t c = 0; c < columns_of(x); ++c) highest = fmaxf(highest, in[c]);
    for (int64_t c = 0; c < columns_of(x); ++c) sum += exp((double)in[c] - highest);
    for (int64_t c = 0; c < columns_of(x); ++c)
      row_of(out, row)[c] = (float)(exp((double)in[c] - highest) / sum);
  }
  if (is("softmax")) READ(row_of(x, rows_of(x) - 1) + columns_of(x)); /* fault: softmax */
  return PLUMB_OK;
}

/* Right, and with needs: aligned operands ("trap"; x86 refuses others), bits that depend on where
 * they begin ("differ"). */
static int activation(const plumb_call* call) {
  const plumb_tensor *out = &call->tensors[0], *x = &call->tensors[1];
  if (x->dtype != PLUMB_F32 || call->params.activation != PLUMB_GELU_TANH) return PLUMB_UNSUPPORTED;
#if defined(__SSE__)
  typedef float four __attribute__((vector_size(16)));
  if (is("trap")) (void)*(const volatile four*)x->data;
#endif
  const int differ = is("differ") && (uintptr_t)x->data % 16 != 0;
  for (int64_t row = 0; row < rows_of(x); ++row) {
    for (int64_t c = 0; c < columns_of(x); ++c) {
      const double v = row_of(x, row)[c];
      const double inner = sqrt(2 / acos(-1)) * (v + 0.044715 * v * v * v);
      const double y = 0.5 * v * (1 + tanh(inner));
      row_of(out, row)[c] = differ ? nextafterf((float)y, 0) : (float)y;
    }
  }
  return PLUMB_OK;
}

static const plumb_op kOps[] = {{"rms_norm", rms_norm, {24, 0, 0}},
                                {"linear", linear, {24, 0, 0}},
                                {"rotary", rotary, {24, 0, 0}},
                                {"softmax", softmax, {24, 0, 0}},
                                {"activation", activation, {24, 0, 0}}};
static const plumb_plugin kPlugin = {PLUMB_PLUGIN_VERSION, "out_of_bounds", "cpu", NULL, 5, kOps};

const plumb_plugin* plumb_plugin_entry(void) { return &kPlugin; }
