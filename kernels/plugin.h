/* Your own kernels, loaded with `harness --plugin lib.so` and judged by the project's recordings.
 *
 * A plugin is a shared library with one symbol, plumb_plugin_entry. It either replaces ops of a
 * device ("cpu", "emu:32", "cuda:0") or is a device of its own. Plain C99; nothing else of this
 * project is needed. What each op computes, its shapes and where it rounds: kernels/ops/ops.h.
 */
#ifndef PLUMB_PLUGIN_H
#define PLUMB_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A library built against version 1 is still loaded: version 2 only adds, at the end of plumb_call.
 */
enum { PLUMB_PLUGIN_VERSION = 2, PLUMB_MAX_RANK = 8 };

/* What a function of a plugin returns. */
enum { PLUMB_OK = 0, PLUMB_FAILED = 1, PLUMB_UNSUPPORTED = 2 };

enum plumb_dtype {
  PLUMB_F64 = 0,
  PLUMB_F32 = 1,
  PLUMB_F16 = 2,
  PLUMB_BF16 = 3,
  PLUMB_I64 = 4,
  PLUMB_I32 = 5,
  PLUMB_BOOL = 6, /* one byte, 0 or 1 */
  PLUMB_U8 = 7,
  PLUMB_I8 = 8,
  PLUMB_F8_E4M3 = 9, /* without infinities: e4m3fn */
  PLUMB_F8_E5M2 = 10,
  PLUMB_U32 = 11
};

enum plumb_activation { PLUMB_SILU = 0, PLUMB_GELU = 1, PLUMB_GELU_TANH = 2, PLUMB_TANH = 3 };

/* How quantised weights are stored: kernels/ops/layouts.h. */
enum plumb_layout {
  PLUMB_INT8 = 0,
  PLUMB_INT8_ZERO = 1,
  PLUMB_FP8 = 2,
  PLUMB_MXFP8 = 3,
  PLUMB_MXFP4 = 4,
  PLUMB_NVFP4 = 5,
  PLUMB_NF4 = 6,
  PLUMB_INT4 = 7,
  PLUMB_INT4_ZERO = 8,
  PLUMB_GPTQ = 9, /* version 1: zeros are stored less 1 */
  PLUMB_GPTQ_V2 = 10,
  PLUMB_AWQ = 11,
  PLUMB_Q4_0 = 12, /* from here on blocks of ggml */
  PLUMB_Q4_1 = 13,
  PLUMB_Q5_0 = 14,
  PLUMB_Q5_1 = 15,
  PLUMB_Q8_0 = 16,
  PLUMB_Q2_K = 17,
  PLUMB_Q3_K = 18,
  PLUMB_Q4_K = 19,
  PLUMB_Q5_K = 20,
  PLUMB_Q6_K = 21
};

/* How quantize makes scales. */
enum plumb_scale_rule { PLUMB_SYMMETRIC = 0, PLUMB_ASYMMETRIC = 1, PLUMB_SHARED_EXPONENT = 2 };

/* What a query row without an allowed key gives: the mean of all values, zeros, anything. */
enum plumb_fully_masked { PLUMB_UNIFORM = 0, PLUMB_ZERO = 1, PLUMB_EXCLUDED = 2 };

/* The last axis is contiguous, the others may have any stride; it is 0 where an axis is repeated,
 * as broadcasts of elementwise ops do: a plugin sees inputs of the output's shape alone. Every byte
 * from the first element to the last may be read; an output's elements alone may be written.
 * Aligned to an element. */
typedef struct plumb_tensor {
  void* data; /* host memory on "cpu", else the device's; NULL: an optional argument is absent */
  int32_t dtype;
  int32_t rank;
  int64_t shape[PLUMB_MAX_RANK];
  int64_t stride[PLUMB_MAX_RANK]; /* in elements */
} plumb_tensor;

/* The parameters of all ops; those that an op does not name below are 0. */
typedef struct plumb_params {
  double eps, weight_offset;
  double scale; /* factor of embedding, scale and sdpa */
  double cap;   /* softcap; for sdpa 0 means none */
  double attention_scaling;
  int64_t window; /* 0: none */
  int64_t query_offset, key_offset;
  int32_t weight_after_rounding; /* 1: R(w R(n)), LLaMA; 0: R(w n), Gemma */
  int32_t divide;
  int32_t activation;
  int32_t transpose_b;
  int32_t interleaved;
  int32_t causal;
  int32_t fully_masked;
} plumb_params;

/* More of them, since version 2. */
typedef struct plumb_more_params {
  double shift;           /* of affine: what is added; of arange: the step */
  int64_t axes;           /* of reductions and flip: bit i is set where axis i is one of them */
  int64_t axis;           /* of cumsum, lookups, sums by ids, concat */
  int64_t offset;         /* of position_ids; of the first random number */
  int64_t group_size;     /* channels that share a mean */
  int64_t chunk_size;     /* of the recorded scan; a kernel may choose its own */
  double dt_min, dt_max;  /* minus and plus infinity: not clamped */
  int32_t step;           /* 1: rounds as a single step does, 0: as a scan in chunks */
  int32_t has_activation; /* 0: causal_conv1d and gemm end without one */
  int64_t groups;         /* of convolutions and group_norm */
  int64_t kernel[2];      /* of pools; these are of H and W, one-dimensional ops have the second */
  int64_t stride[2], padding[2];    /* of pools and convolutions */
  int64_t dilation[2];              /* of convolutions */
  int64_t output_padding[2];        /* of transposed ones */
  double beta;                      /* of gemm: c's factor; 0: it is not read */
  int32_t transpose_a;              /* of gemm: a is [.., K, M] */
  int32_t counts_padding;           /* of avg_pool2d: count_include_pad */
  int64_t per_axis[PLUMB_MAX_RANK]; /* of pad: elements on the left; of roll: shifts; of permute:
                                       the axis of x that is axis i of out */
  int64_t seed;
  int32_t largest;  /* of top_k: 1, or 0 for the smallest */
  int64_t index;    /* of embedding_backward: the row that stays 0, or -1; of cross entropies: the
                       label that is ignored */
  int32_t layout;   /* of dequantize and quantised_linear: a plumb_layout */
  int64_t group[2]; /* rows and columns that share a scale; 0: as many as there are scales for, of
                       quantize all */
  double divisor;   /* of quantize */
  int32_t scale_rule;
} plumb_more_params;

/* One call. `tensors` in this order ([x] may be absent), then the parameters that count:
 *
 *   embedding         out, ids, weight                            scale
 *   rms_norm          out, x, weight                              eps weight_offset
 *                                                                 weight_after_rounding
 *   layer_norm        out, x, weight, [bias]                      eps
 *   linear            out, x, weight, [bias]
 *   activation        out, x                                      activation
 *   add, sub, mul,    out, a, b
 *   div, pow,
 *   minimum, maximum
 *   multiply_add      out, a, b, c
 *   where             out, condition, a, b                        condition is bool
 *   add_scalar        out, x                                      scale: what is added
 *   eq, ne, lt, le,   out, a, b                                   out is bool
 *   gt, ge,
 *   logical_and,                                                  a and b of the last are floats or
 *   logical_or                                                    bool
 *   affine            out, x                                      scale, shift: what is added
 *   scale             out, x                                      scale divide
 *   leaky_relu        out, x                                      scale: the slope
 *   elu               out, x                                      scale: alpha
 *   neg, abs, sign,   out, x
 *   floor, ceil,
 *   round, relu,
 *   reciprocal,
 *   square, sqrt,
 *   rsqrt, exp,
 *   expm1, log,
 *   log1p, sin, cos,
 *   erf, tanh, gelu,
 *   gelu_tanh, silu,
 *   sigmoid, softplus
 *   cumsum            out, x                                      axis
 *   sum, mean, prod,  out, x                                      axes
 *   min, max, norm,
 *   log_sum_exp,
 *   argmin, argmax,
 *   any, all
 *   group_norm        out, x, [weight], [bias]                    eps groups
 *   max_pool2d        out, x                                      kernel stride padding
 *   avg_pool2d        out, x                                      kernel stride padding
 *                                                                 counts_padding
 *   upsample_nearest2d
 *                     out, x
 *   conv1d, conv2d    out, x, weight, [bias]                      stride padding dilation groups
 *   conv_transpose1d, out, x, weight, [bias]                      stride padding dilation groups
 *   conv_transpose2d                                              output_padding
 *   index_select,     out, x, ids                                 axis; ids are i64, i32 or u8
 *   gather
 *   index_add,        out, x, ids, source                         axis; likewise
 *   scatter_add
 *   concat            out, a, b                                   axis
 *   permute, roll     out, x                                      per_axis
 *   pad               out, x                                      per_axis scale: the value
 *   flip              out, x                                      axes
 *   top_k             values, ids, x                              largest
 *   fill              out                                         scale: the value
 *   arange            out                                         scale: the start; shift
 *   uniform, normal   out                                         seed offset
 *   dequantize        out, codes, [scales], [zeros],              layout group
 *                     [global_scale], [group_index]
 *   quantize          codes, scales, [zeros], x                   scale_rule divisor group
 *   quantised_linear  out, x, codes, [scales], [zeros],           layout group
 *                     [global_scale], [group_index],
 *                     [x_scales], [bias]
 *   softmax           out, x
 *   matmul            out, a, b                                   transpose_b
 *   gemm              out, a, b, [c], [bias]                      scale: alpha; beta transpose_a
 *                                                                 transpose_b has_activation
 *                                                                 activation
 *   masked_add        out, x, mask
 *   repeat_heads      out, x
 *   rotary_table      cos, sin, positions, inv_freq               attention_scaling
 *   rotary            out, x, cos, sin                            interleaved
 *   causal_mask       out, [key_valid], [explicit_mask]           causal window query_offset
 *                                                                 key_offset fully_masked
 *   copy, cast        out, x
 *   transpose         out, x
 *   mask_rows         out, x, valid
 *   mask_fill         out, x, mask                                scale: the value
 *   position_ids      out, [valid]                                offset
 *   causal_conv1d     out, [state_after], x, weight, [bias],      has_activation activation
 *                     [state_before]
 *   ssd_scan          y, [state_after], x, dt, b, c, a_log, d,    chunk_size dt_min dt_max step
 *                     dt_bias, [state]
 *   gated_rms_norm    out, x, gate, weight                        eps group_size
 *   gated_activation  out, gate, up                               activation
 *   softcap           out, x                                      cap
 *   scaled_add        out, x, residual                            scale
 *   add_rms_norm      sum, out, x, residual, weight               as rms_norm
 *   sdpa              out, q, k, v, [key_valid], [explicit_mask]  scale cap, and as causal_mask
 *   activation_backward
 *                     d_x, x, d_out                               activation
 *   gated_activation_backward
 *                     d_gate, d_up, gate, up, d_out               activation
 *   softcap_backward  d_x, x, d_out                               cap
 *   sigmoid_backward, d_x, x, d_out
 *   softplus_backward,
 *   relu_backward
 *   softmax_backward  d_x, y, d_out
 *   rms_norm_backward d_x, [d_weight], x, weight, d_out           as rms_norm
 *   layer_norm_backward
 *                     d_x, [d_weight], [d_bias], x, weight, d_out eps
 *   gated_rms_norm_backward
 *                     d_x, d_gate, [d_weight], x, gate, weight,   eps group_size
 *                     d_out
 *   embedding_backward
 *                     d_weight, d_out, ids                        scale index
 *   rotary_backward   d_x, d_out, cos, sin                        interleaved
 *   cross_entropy     loss, logits, labels                        index
 *   cross_entropy_backward
 *                     d_logits, logits, labels, d_loss            index
 *   linear_cross_entropy
 *                     loss, x, weight, labels                     scale cap index
 *   linear_cross_entropy_backward
 *                     d_x, [d_weight], x, weight, labels, d_loss  scale cap index
 *   causal_conv1d_backward
 *                     d_x, [d_weight], [d_bias], x, weight,       has_activation activation
 *                     [bias], d_out
 *   sdpa_backward     d_q, d_k, d_v, d_out, q, k, v, out, [lse],  as sdpa
 *                     [key_valid], [explicit_mask]
 *   ssd_scan_backward d_x, d_dt, d_b, d_c, d_a_log, d_d,          chunk_size dt_min dt_max step
 *                     d_dt_bias, [d_state], d_y, [d_state_after],
 *                     x, dt, b, c, a_log, d, dt_bias, [state]
 *   linear_backward   d_x, [d_weight], [d_bias], x, weight, d_out
 *   matmul_backward   d_a, d_b, a, b, d_out                       transpose_b
 *   quantised_sdpa    out, q, k, v, k_scales, v_scales,           as sdpa
 *                     [key_valid], [explicit_mask]
 */
typedef struct plumb_call {
  const plumb_tensor* tensors;
  int32_t count;
  plumb_params params;
  void* stream; /* of a GPU: its cudaStream_t or hipStream_t; work is queued there, not awaited */
  /* Scratch memory of the device, 64-byte aligned, until the call returns; NULL when there is
   * none left. */
  void* (*scratch)(const struct plumb_call* call, int64_t bytes);
  void* context; /* of scratch */
  char* error;   /* room for a message, ended by 0, when the call fails */
  int64_t error_bytes;
  plumb_more_params more; /* since version 2 */
} plumb_call;

/* The arithmetic that an op promises. The verdict's limits are derived from it. */
typedef struct plumb_contract {
  int32_t accumulator_bits; /* significand bits of the sums: 24 for float, 53 for double */
  int32_t truncated_block;  /* 0: sums round to nearest; n: they truncate every n products */
  int32_t fused;            /* 1: rounds only at the output; 0: where kernels/ops/ops.h says R() */
} plumb_contract;

typedef struct plumb_op {
  const char* name; /* "rms_norm" */
  int (*run)(const plumb_call* call);
  plumb_contract contract;
} plumb_op;

/* Memory of a device of its own. Each function returns PLUMB_OK or another number. */
typedef struct plumb_memory {
  int (*allocate)(void** data, int64_t bytes); /* at least 64-byte aligned */
  void (*release)(void* data);
  int (*upload)(void* to, const void* from_host, int64_t bytes);
  int (*download)(void* to_host, const void* from, int64_t bytes);
  int (*fill)(void* to, uint8_t byte, int64_t bytes);
  int (*synchronize)(void); /* waits for all ops; PLUMB_FAILED when one of them failed */
} plumb_memory;

typedef struct plumb_plugin {
  int32_t version;            /* PLUMB_PLUGIN_VERSION */
  const char* name;           /* letters, digits, _ and -: results say "rms_norm/plugin:NAME" */
  const char* device;         /* whose ops are replaced (PLUMB_DEVICE of harness plugin-flags), or
                               * the name of the new device */
  const plumb_memory* memory; /* of the new device; NULL: ops of an existing one are replaced */
  int32_t op_count;
  const plumb_op* ops;
} plumb_plugin;

/* The symbol that is looked up. What it returns stays valid for good. */
const plumb_plugin* plumb_plugin_entry(void);

#ifdef __cplusplus
}
#endif
#endif
