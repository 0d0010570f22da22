// THE CONTRACT: every op that a device can offer, with formula, shapes and rounding points.
//
// Conventions. Outputs come first and have the right shape and dtype already. R() is a rounding to
// the storage dtype, the dtype of the float tensors of a call, which all agree but where an op says
// otherwise; everything between two R() is computed in float32 or better (float64 on the oracle).
// The last axis of every tensor is contiguous, the others may be strided. Elementwise ops may work
// in place. Ops never allocate and never synchronise; a wrong shape or dtype is a UsageError, a
// case that a device lacks is Unsupported. Axes: B batch, T query tokens, S key slots, H heads, Hkv
// key-value heads, D head_dim, C channels.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "kernels/core/arena.h"
#include "kernels/ops/check.h"
#include "kernels/ops/contract.h"
#include "kernels/ops/implementations.h"
#include "kernels/ops/op_call.h"
#include "kernels/ops/tuned_linears.h"

namespace plumb {

// What one op call did, for limits and reports.
struct OpRecord {
  OpId op;
  Contract contract;
  std::vector<Stage> stages;
  ImplName impl;  // which of the device's implementations ran
};

class DeviceOps;
struct LogitLossKernels;
struct QuantisedWeight;
struct GenerateCall;
struct IndexAddCall;
struct MapCall;
struct MoveCall;

// The end of its pages at which an operand is placed.
enum class PageEnd { left, right };

// Checks the operands of every op, then runs it: in DeviceOps (kernels/ops/device_ops.h), a
// device's own code, or in do_call, which hands it on to another device.
class Ops {
 public:
  // `implementations`: every one compiled into the device; an op without any runs unnamed.
  explicit Ops(Device& device, std::vector<Implementation> implementations = {})
      : device_(device), arena_(device), choice_(std::move(implementations)) {}
  virtual ~Ops() = default;
  Ops(const Ops&) = delete;
  Ops& operator=(const Ops&) = delete;

  // out[b, t, :] = R(weight[ids[b, t], :] * scale). ids [...] i64, i32, u32 or u8, weight [V, C],
  // out
  // [..., C]. No rounding happens when scale is 1. An id outside [0, V) throws UsageError, on a GPU
  // from the next synchronize(). Gemma2TextScaledWordEmbedding.
  void embedding(const Tensor& out, const Tensor& ids, const Tensor& weight, double scale = 1);

  // n = x / sqrt(mean(x^2) + eps) over the last axis; before: R((offset + w) * R(n)), after:
  // R((offset + w) * n). x, out [..., C], weight [C]. LlamaRMSNorm, Gemma2RMSNorm.
  void rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight, const RmsNormParams&);

  // R((x - mean) / sqrt(var + eps) * weight + bias), biased variance. bias may be undefined.
  void layer_norm(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& bias,
                  double eps);

  // R(x W^T + bias). x [..., K], weight [N, K], bias [N] or undefined, out [..., N].
  void linear(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& bias = {});

  // R(f(x)), one rounding. silu x/(1+e^-x); gelu x/2 (1+erf(x/sqrt 2)); gelu_tanh
  // x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
  void activation(const Tensor& out, const Tensor& x, Activation function);

  // The op of one, two or three inputs, R(its formula): kernels/ops/formulas.h. `op` is one whose
  // row has a formula of so many inputs. Comparisons and logical ops write bool. Whole numbers,
  // where the row has them, wrap around as torch's do, a sum of bools being their "or". Shapes go
  // together as torch's do: aligned from the right, an axis of 1, or a missing one, is repeated;
  // out has the whole shape.
  void unary(OpId op, const Tensor& out, const Tensor& x, double number = 0, double shift = 0);
  void binary(OpId op, const Tensor& out, const Tensor& a, const Tensor& b, double number = 0);
  void ternary(OpId op, const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& c);

  // R(a + b), R(a * b), R(a / b).
  void add(const Tensor& out, const Tensor& a, const Tensor& b) { binary(OpId::add, out, a, b); }
  void mul(const Tensor& out, const Tensor& a, const Tensor& b) { binary(OpId::mul, out, a, b); }
  void div(const Tensor& out, const Tensor& a, const Tensor& b) { binary(OpId::div, out, a, b); }
  // R(x + value).
  void add_scalar(const Tensor& out, const Tensor& x, double value) {
    unary(OpId::add_scalar, out, x, value);
  }
  // R(x factor + shift).
  void affine(const Tensor& out, const Tensor& x, double factor, double shift) {
    unary(OpId::affine, out, x, factor, shift);
  }
  // R(x * factor) or R(x / factor).
  void scale(const Tensor& out, const Tensor& x, double factor,
             ScaleOperation operation = ScaleOperation::multiply);

  // R(R(x * factor) + residual): equal shapes. GraniteDecoderLayer.
  void scaled_add(const Tensor& out, const Tensor& x, const Tensor& residual, double factor);
  // out[.., i, ..] = R(x[.., 0, ..] + ... + x[.., i, ..]) along an axis; i64 of whole numbers and
  // bools. torch.cumsum.
  void cumsum(const Tensor& out, const Tensor& x, int64_t axis);

  // R of a reduction of x along `axes`, kernels/ops/reductions.h; `op` is one whose row has a
  // reduction. out has x's shape, the reduced axes being 1, or left out ([1] where none is left).
  // Sums are in float32, or float64 of such x, in an order that x's shape and strides settle; sum
  // and prod of whole numbers and bools are i64, which wraps around. As torch's do: min and max
  // are NaN where an element is; argmin and argmax, i64, are the place of the first NaN, or else of
  // the first of equal elements, counted along the reduced axes; any and all, of bools too, give
  // bool, NaN being true. Of no elements sum and norm are 0, prod 1, mean NaN, log_sum_exp minus
  // infinity, any false, all true; the others are a UsageError. norm is the root of the sum of
  // squares, infinity where that is beyond float32.
  void reduce(OpId op, const Tensor& out, const Tensor& x, Axes axes);

  // R((x - mean) / sqrt(var + eps) * weight[c] + bias[c]), mean and biased variance those of a
  // batch row's channels of one of `groups`, with all that is behind them. x, out [B, C, *],
  // weight, bias [C] or undefined. torch.nn.functional.group_norm.
  void group_norm(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const GroupNormParams&);

  // `op` conv2d: out[b, o, p, q] = R(bias[o] + sum over the group's channels c and k, l of
  // weight[o, c, k, l] x[b, c, p stride - padding + k dilation, q ...]), x being 0 outside.
  // conv_transpose2d: each x[b, c, i, j] weight[c, o, k, l] is added to out[b, o, i stride -
  // padding + k dilation, j ...], and output_padding, less than stride or dilation, is what out is
  // longer by. x [B, C, H, W], out [B, O, P, Q], weight [O, C / groups, K, L] or [C, O / groups, K,
  // L], bias [O] or undefined. conv1d and conv_transpose1d lack H, P and K. At least one tap and
  // one place for it; groups divides C and O. Sums have C / groups K L terms, in float32; a tap
  // that takes nothing adds 0, or NaN where its weight is not finite. torch.nn.functional has them
  // all.
  void convolve(OpId op, const Tensor& out, const Tensor& x, const Tensor& weight,
                const Tensor& bias, const ConvParams&);

  // `op` max_pool2d: the largest, or NaN, of each window of kernel elements; avg_pool2d: R of their
  // sum over how many there are, those of the padding counting, if they do, as 0. Padding is at
  // most half of the kernel. x [B, C, H, W], out [B, C, P, Q], P = (H + 2 padding - kernel) /
  // stride + 1, rounded down. torch.nn.functional has both, with ceil_mode off.
  void pool(OpId op, const Tensor& out, const Tensor& x, const PoolParams&);

  // out[.., p, q] = x[.., min(floor(p (H / P)), H - 1), ...], the quotient and the product in
  // float32, as torch computes them for a given size and for whole factors. x [B, C, H, W], out
  // [B, C, P, Q]. torch.nn.functional.interpolate, mode nearest.
  void upsample_nearest2d(const Tensor& out, const Tensor& x);

  // R(softmax over the last axis); the row's maximum is subtracted first; a row of -inf gives
  // zeros.
  void softmax(const Tensor& out, const Tensor& x);

  // R(a b) or R(a b^T) per batch and head: a [B, H, M, K], b [B, Hkv, K, N] or [B, Hkv, N, K], out
  // [B, H, M, N]; H is a multiple of Hkv and head h uses h / (H / Hkv).
  void matmul(const Tensor& out, const Tensor& a, const Tensor& b, bool transpose_b);

  // R(f(alpha a b + beta c + bias)) per batch, f only if given, a sum in float32: a [*, M, K] or,
  // transposed, [*, K, M], b [*, K, N] or [*, N, K], out [*, M, N], bias [N] or undefined; `*` is
  // up to two axes. c [*, M, N], which may be out, is not read where beta is 0, else it is needed.
  // Of a and b in f64 sums are float64; in f8_e4m3 or f8_e5m2 out, c and bias are f32; in i8 or u8
  // they are i32, which wraps around, alpha is 1, beta 0 or 1, and there is no f. torch.addmm,
  // torch.baddbmm, torch._int_mm.
  void gemm(const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& c,
            const Tensor& bias, const GemmParams&);

  // R(x + mask), x [B, H, T, S], mask [B|1, H|1, T, S] additive.
  void masked_add(const Tensor& out, const Tensor& x, const Tensor& mask);

  // out[b, h] = x[b, h / repeats]. x [B, Hkv, S, D], out [B, H, S, D]. repeat_kv.
  void repeat_heads(const Tensor& out, const Tensor& x);

  // cos = R(cos(p w) * scaling), sin alike; pair i of r/2 fills columns i and i + r/2. positions
  // i64 [B, T], inv_freq [r/2] f32 (f64 on the oracle), cos, sin [B, T, r]. The angle is rounded to
  // f32.
  void rotary_table(const Tensor& cos, const Tensor& sin, const Tensor& positions,
                    const Tensor& inv_freq, double attention_scaling);

  // half: y_i = R(R(x_i c_i) - R(x_{i+r/2} s_i)), y_{i+r/2} = R(R(x_{i+r/2} c_i') + R(x_i s_i'));
  // interleaved: the same on the pairs (2i, 2i+1) with c_i, s_i. Columns from r on pass through.
  // x, out [B, H, T, D], cos, sin [B|1, T, r]. apply_rotary_pos_emb.
  void rotary(const Tensor& out, const Tensor& x, const Tensor& cos, const Tensor& sin,
              RotaryStyle style);

  // The mask as a tensor [B|1, 1, T, S]: bool (true = allowed), or additive in a float dtype: 0 or,
  // where not allowed, the dtype's lowest finite number (minus infinity when fully_masked is zero).
  // An explicit bool mask [B|1, H|1, T, S] becomes additive.
  void causal_mask(const Tensor& out, const AttentionMask& mask);

  // out = x, any strides, equal shapes and dtypes.
  void copy(const Tensor& out, const Tensor& x);
  // Two copies, in one go where the tensors are alike: keys and values.
  void copy_pair(const Tensor& out_a, const Tensor& a, const Tensor& out_b, const Tensor& b);

  // k, v [B, Hkv, T, D], the tokens behind `past`, into slots [B, Hkv, S, D]: token p into slot p;
  // with a window W, S being 2 W, into slots p mod W and W + p mod W, so that the last W tokens are
  // always neighbours (earlier ones of a longer T are left out). A part of a cache, not recorded.
  void store_tokens(const Tensor& key_slots, const Tensor& value_slots, const Tensor& k,
                    const Tensor& v, const Position& past, std::optional<int64_t> window);

  // past.stored = past.stored + tokens. Not recorded.
  void advance(const Position& past, int64_t tokens);

  // The greedy choice: ids[b] and log[past mod N, b] = index of the largest of logits[b, 0, :], the
  // first of equal ones. Where logits[b] has a NaN, ids[b] = 0 and the log has -1 - its index.
  // logits [B, 1, V], ids i64 [B, 1], log i64 [N, B], all dense, V < 2^31. Not recorded.
  void choose_greedily(const Tensor& ids, const Tensor& log, const Tensor& logits,
                       const Position& past);

  // out[.., j, i] = x[.., i, j]: the last two axes exchanged in memory. x [.., M, N], out
  // [.., N, M], rank 2 at least.
  void transpose(const Tensor& out, const Tensor& x);

  // out = R(value) where mask is true, else x. mask bool of x's shape. Tensor.masked_fill.
  void mask_fill(const Tensor& out, const Tensor& x, const Tensor& mask, double value);

  // out[b, t] = offset + t; given valid, offset less 1 plus the number of true valid[b, 0 .. t],
  // and 0 where valid[b, t] is false. out i64 [B, T], valid bool [B, T] or undefined. generate():
  // _prepare_position_ids_for_generation.
  void position_ids(const Tensor& out, const Tensor& valid, int64_t offset);

  // out = R(x), from any dtype to any, as torch 2.13 does on x86. f64 and whole numbers become f32
  // on the way to a float of fewer bits: they may be rounded twice. What is too large for a float
  // is infinity, and NaN for f8_e4m3, which has none (torch 2.13 gives the largest, 448). Floats
  // lose what is behind the point: beyond i64 or i32, and of NaN, the result is the lowest number;
  // i8 has the last 8 bits of such an i32, u8 those of the i64. From one whole dtype to another the
  // last bits are kept. bool is whether x is not 0, true of NaN.
  void cast(const Tensor& out, const Tensor& x);

  // Lookups: bits are moved, of any dtype. ids i64, i32, u32 or u8; one that is outside [0, x's
  // extent along the axis) throws UsageError, on a GPU from the next synchronize(). out[.., i, ..]
  // = x[.., ids[i], ..] along an axis. torch.index_select.
  void index_select(const Tensor& out, const Tensor& x, const Tensor& ids, int64_t axis);
  // out[.., i, ..] = x[.., ids[.., i, ..], ..]: ids has out's shape, and along other axes x has as
  // many elements or more. torch.gather.
  void gather(const Tensor& out, const Tensor& x, const Tensor& ids, int64_t axis);

  // out[.., j, ..] = R(x[.., j, ..] + every source[.., i, ..] where ids[i] = j), added one after
  // the other from the first i on in the accumulator: on all devices whose sums are float32 the
  // bits are the same. out and x have one shape, and may be one tensor; source has it, too, but for
  // ids' length along the axis. Ids as those of lookups. Tensor.index_add.
  void index_add(const Tensor& out, const Tensor& x, const Tensor& ids, const Tensor& source,
                 int64_t axis);
  // The same with an id for each element, ids[.., i, ..]: source has at least its shape, and so has
  // x along other axes. Tensor.scatter_add.
  void scatter_add(const Tensor& out, const Tensor& x, const Tensor& ids, const Tensor& source,
                   int64_t axis);

  // Moves of bits, of any dtype (f8 too). A slice is a view: copy() of it is its op.
  // b behind a along an axis. Of more than two, calls into views of out. torch.cat.
  void concat(const Tensor& out, const Tensor& a, const Tensor& b, int64_t axis);
  // Axis i of out is axis axes[i] of x. Tensor.permute.
  void permute(const Tensor& out, const Tensor& x, const PerAxis& axes);
  // out[.., i, ..] = x[.., i - left, ..], and where there is no such element the value, as cast()
  // makes it. left may be negative: then x is cut. What is on the right follows from out's shape.
  // functional.pad.
  void pad(const Tensor& out, const Tensor& x, const PerAxis& left, double value);
  // Elements in reverse order along these axes. torch.flip.
  void flip(const Tensor& out, const Tensor& x, Axes axes);
  // out[.., (i + shift) mod extent, ..] = x[.., i, ..]. torch.roll.
  void roll(const Tensor& out, const Tensor& x, const PerAxis& shifts);

  // The k largest, or smallest, of each row, in order, and their places. NaN is the largest; of
  // equal ones, as 0 and -0, the first comes first. torch.topk, where that is not said.
  void top_k(const Tensor& values, const Tensor& ids, const Tensor& x, bool largest);

  // Element i of out, in row-major order, of any dtype: cast() of the f64. torch.full, ones, zeros.
  void fill(const Tensor& out, double value);
  // start + i step, both operations rounded to f64.
  void arange(const Tensor& out, double start, double step);
  // The number offset + i of a seed, in float dtypes; the same bits on every device
  // (kernels/ops/counter.h). uniform: [0, 1), all significand bits random, exact. normal: Box and
  // Muller in float64, off by less than 1e-15 of the radius, at most 6.7, before it is rounded.
  void uniform(const Tensor& out, const RandomStream& random);
  void normal(const Tensor& out, const RandomStream& random);

  // A weight of a layout (kernels/ops/layouts.h) as floats: R((code - zero) scale), rounded once
  // from what is exact; a scale that has a global one is the quotient in float32. Which tensors
  // there are, and their shapes: the layout. codes are [N, K], or packed along an axis, which is
  // filled up to whole words, or [N, bytes of blocks], or [K, ..] where all is by input; scales and
  // zeros [groups of rows, groups of columns], or [N] of rows, or one; group_index, of each column
  // its group, needs no order. The last group of an axis may be shorter where params.group says of
  // how many rows and columns groups are.
  void dequantize(const Tensor& out, const Tensor& codes, const Tensor& scales, const Tensor& zeros,
                  const Tensor& global_scale, const Tensor& group_index, const QuantisedParams&);

  // Values as codes with scales, for each group of params.group rows and columns, the last of which
  // may be shorter. x, codes [M, K], scales [P, Q] of as many groups. r is the nearest whole
  // number, of two the even one; all operations are in float32, a scale is rounded to its dtype.
  // symmetric: scale = amax / divisor (torchao: 127.5), code = r(x / scale), or x / scale in e4m3
  // or e5m2. asymmetric: scale = (high - low) / divisor of the values and 0, zero = r(lowest code -
  // low / scale), code = r(x / scale) + zero, of i8 or u8. shared_exponent (OCP Microscaling 1.0,
  // 6.3): scales u8, e + 127 with e = floor(log2(amax)) less that of the format's largest number,
  // code = x / 2^e. Codes and zeros saturate. Where a scale is 0, codes are 0, zeros the zero of 0.
  // NaN is left out of amax, low and high, and becomes the code of 0, or NaN.
  void quantize(const Tensor& codes, const Tensor& scales, const Tensor& zeros, const Tensor& x,
                const QuantizeParams&);

  // R(x W^T + bias) with W as dequantize() has it, in float32, and sums in float32. With x_scales,
  // x has codes: x i8 and a layout of i8, whose scales are of whole rows, exact sums in i32 of x
  // (code - zero), then R(R32(R32(sum) x_scale) scale + bias); or x e4m3 or e5m2, R(R32(x W^T)
  // x_scale + bias). x [*, K], x_scales [*, 1], bias [N] or undefined, out [*, N].
  void quantised_linear(const Tensor& out, const Tensor& x, const Tensor& codes,
                        const Tensor& scales, const Tensor& zeros, const Tensor& global_scale,
                        const Tensor& group_index, const Tensor& x_scales, const Tensor& bias,
                        const QuantisedParams&);

  // out = x where valid, else 0. x, out [B, T, C], valid bool [B, T]. apply_mask_to_padding_states.
  void mask_rows(const Tensor& out, const Tensor& x, const Tensor& valid);

  // Depthwise causal convolution: out[b, t, c] = R(f(R(bias[c] + sum over k < K of
  // weight[c, 0, k] past[b, t - K + 1 + k, c]))), f only if given, `past` being x behind the K
  // columns of state_before (zeros if undefined). state_after: the last K columns of that, if
  // defined; it may be state_before. x, out [B, T, C], weight [C, 1, K], bias [C] or undefined,
  // states [B, C, K]. causal_conv1d_fn, causal_conv1d_update.
  void causal_conv1d(const Tensor& out, const Tensor& state_after, const Tensor& x,
                     const Tensor& weight, const Tensor& bias, const Tensor& state_before,
                     std::optional<Activation> function);

  // S_t = exp(dt_t A) S_{t-1} + dt_t x_t (outer) b_t, y_t = S_t c_t + d x_t with
  // dt = R(softplus(R(dt + dt_bias))), softplus(v) = v above 20. The chunk form clamps dt to
  // [R(dt_min), R(dt_max)], keeps the rest in float32 and gives y in float32 (float64 where x is).
  // The step form takes one token and a state: S = S exp(dt A) + R(R(dt b) x),
  // y = R(R(R(S) c) + R(x d)), y in x's dtype. state_after, like SsdInputs::state, gets the last
  // S if defined; it may be that very tensor. y [B, T, H, P]. mamba2_chunk_scan,
  // mamba2_selective_state_update.
  void ssd_scan(const Tensor& y, const Tensor& state_after, const SsdInputs& in, const SsdParams&);

  // v = x silu(gate), n = v / sqrt(mean(v^2) + eps) over each group_size channels, out = R(w R(n)),
  // R() to the dtype of x and out. x, out [..., C] of one dtype, gate [..., C] and weight [C] of
  // another or the same. Zamba2RMSNormGated.
  void gated_rms_norm(const Tensor& out, const Tensor& x, const Tensor& gate, const Tensor& weight,
                      const GatedRmsNormParams&);

  // R(R(f(gate)) * up). Default: activation, mul.
  void gated_activation(const Tensor& out, const Tensor& gate, const Tensor& up,
                        Activation function);

  // R(R(tanh(R(x / cap))) * cap). Default: scale, activation, scale. Gemma2's final softcap.
  void softcap(const Tensor& out, const Tensor& x, double cap);

  // sum = R(x + residual), out = rms_norm(sum). Default: add, rms_norm.
  void add_rms_norm(const Tensor& sum, const Tensor& out, const Tensor& x, const Tensor& residual,
                    const Tensor& weight, const RmsNormParams&);

  // Attention. q [B, H, T, D], k, v [B, Hkv, S, D], out [B, T, H, D] (strides free).
  // Default, HF's eager rounding points: matmul, scale, softcap, masked_add, softmax, matmul.
  // Fused: softmax(mask(cap tanh(q k^T scale / cap))) v in one go, R() at the output only.
  void sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
            const AttentionMask& mask, const SdpaParams&);

#include "kernels/ops/backward_ops.h"

  // Attention to keys and values that are codes, i8, e4m3 or e5m2, with a scale for each token and
  // head: sdpa of k = R(R32(code scale)), v alike. Default: cast, mul, cast, sdpa. q [B, H, T, D],
  // k, v [B, Hkv, S, D], k_scales, v_scales [B, Hkv, S, 1] f32 (f64 where q is).
  void quantised_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                      const Tensor& k_scales, const Tensor& v_scales, const AttentionMask& mask,
                      const SdpaParams&);

  // The arithmetic of an op for a storage dtype as this device does it.
  virtual Contract contract(OpId op, DType storage) const = 0;
  // Whether the device has its own version of a fused op.
  virtual bool overrides(OpId op) const = 0;

  // Whether sdpa, store_tokens, advance and choose_greedily find positions in the device's memory
  // alone, as replayed launches must; else they go by what the host knows.
  virtual bool reads_positions() const { return false; }
  // Whether linear and embedding take a weight that is narrower than their outputs: float64 runs
  // leave it as it was recorded.
  virtual bool takes_narrow_weights() const { return false; }

  // How the device can compute a linear of this shape; empty where it has nothing to choose from.
  virtual std::vector<LinearWay> linear_ways(const LinearShape&) { return {}; }
  // What linear goes by instead of the device's own choice, if --impl leaves it; null where it has
  // none.
  virtual TunedLinears* tuned_linears() { return nullptr; }

  // Which fused ops may run in the device's own version; the rest run composed. All at the start.
  void set_fused(OpSet allowed) { fused_ = allowed; }
  OpSet fused() const { return fused_; }
  const std::vector<Implementation>& implementations() const { return choice_.all(); }
  // Restricts them to those in whose names the regular expression is found: ImplChoice::force.
  virtual void force(const std::string& regex);
  const ImplChoice& choice() const { return choice_; }
  // From now on a plugin's kernels get operands that are apart, on the host at this end of separate
  // pages (kernels/plugin/confined_call.h). Returns whether the end makes a difference to any op.
  virtual bool confine(std::optional<PageEnd>) { return false; }
  // Calls are appended to `records`, until this is called with null; composed ops appear as their
  // parts.
  void observe(std::vector<OpRecord>* records) { records_ = records; }

  Arena& arena() { return arena_; }
  Device& device() { return device_; }

 protected:
  // A do_* asks before it takes one of the device's implementations, the fastest one first.
  bool choose(std::string_view kernel, std::string_view variant = {}) {
    return choice_.choose({kernel, variant});
  }
  // The same for the last that is left; throws Unsupported when --impl excludes it.
  void settle_for(std::string_view kernel, std::string_view variant = {}) {
    if (!choose(kernel, variant)) choice_.exhausted();
  }
  // The contract of the one chosen, where it is not what contract() says.
  void ran_with(const Contract& contract) { ran_with_ = contract; }
  // What a device within this one did for the op.
  void note(const OpRecord& inner) {
    choice_.note(inner.impl);
    ran_with_ = inner.contract;
  }

#include "kernels/ops/compositions.h"

  bool runs_fused(OpId op) const { return fused_[static_cast<size_t>(op)] && overrides(op); }

 private:
  // This, where it has kernels of its own.
  virtual DeviceOps* own() { return nullptr; }
  // The whole call, where it has none.
  virtual void do_call(const OpCall&) {}
  // Operands in the order of the op's row, of which the last may be missing where they are
  // optional.
  template <OpId op, bool transposed = false, class... Tensors>
  CheckedCall checked(const Tensors&... tensors) const;
  // `method` of ops.h: `body` of its kernels, or do_call; recorded with the lengths of its sums,
  // those of the op's row where none are given.
  template <auto method, auto body, class... Arguments>
  void dispatch(const CheckedCall& call, const Arguments&... arguments);
  template <auto method, auto body, class... Arguments>
  void dispatch(OpId op, DType storage, std::initializer_list<int64_t> sums,
                const Arguments&... arguments);
  template <auto method, class... Arguments>
  void dispatch_map(const CheckedCall& call, const MapCall& map, const Arguments&... arguments);
  template <auto method, class... Arguments>
  void dispatch_maps(const CheckedCall& call, std::initializer_list<const MapCall*> maps,
                     const Arguments&... arguments);
  template <auto method, class... Arguments>
  void run_move(const CheckedCall& call, std::initializer_list<const MoveCall*> moves,
                const Arguments&... arguments);
  template <auto method, class... Arguments>
  void dispatch_index_add(const CheckedCall& call, const IndexAddCall& add,
                          const Arguments&... arguments);
  template <auto method, class... Arguments>
  void dispatch_generate(const CheckedCall& call, const GenerateCall& generate,
                         const Arguments&... arguments);
  // Runs ops of this device as parts of `op`: they are not recorded.
  template <class Parts>
  void run_within(OpId op, const Parts& parts);
  // l of linear_cross_entropy, and l before its softcap, where it has one.
  void make_logits(const Tensor& logits, const Tensor& uncapped, const Tensor& x,
                   const Tensor& weight, const LogitLossParams& params);
  // Of e behind the logits' cross entropy, in place, the gradient of x W^T.
  void leave_logits(const Tensor& gradient, const Tensor& uncapped, const LogitLossParams& params);
  // The operands of a quantised weight [rows, columns], held to its layout.
  QuantisedWeight weight_of(OpId op, const Tensor& codes, const Tensor& scales, const Tensor& zeros,
                            const Tensor& global_scale, const Tensor& group_index,
                            const QuantisedParams& params, int64_t rows, int64_t columns) const;
  template <auto method, class Body, class... Arguments>
  void run_op(OpId op, Body body, const Arguments&... arguments);
  void record(const CheckedCall& call);
  void record(OpId op, DType storage, std::span<const int64_t> sums);

  Device& device_;
  Arena arena_;
  OpSet fused_ = OpSet().set();
  std::vector<OpRecord>* records_ = nullptr;
  ImplChoice choice_;
  std::optional<Contract> ran_with_;
};

}  // namespace plumb
