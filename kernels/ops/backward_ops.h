// The backward ops of class Ops, whose conventions hold (ops.h). No include guard: it is read
// inside of the class, once.

// Backward ops: d_x is the gradient of a loss by x, d_out by the output. Each computes in the
// accumulator from the forward's operands and rounds every gradient once; sums over tokens, too,
// are in the accumulator. An absent gradient is not computed. What eager code rounds in between
// has no rounding here, but for values of the forward that are named with their R().

// d_x = R(f'(x) d_out), the derivative being read from f's formula. softcap_backward (its number
// is the cap), sigmoid_backward, softplus_backward and relu_backward (0 at 0) likewise, as
// binary(op, d_x, x, d_out, number).
void activation_backward(const Tensor& d_x, const Tensor& x, const Tensor& d_out,
                         Activation function);
// Of f(gate) up: d_gate = R(f'(gate) up d_out), d_up = R(f(gate) d_out). d_gate may be gate.
void gated_activation_backward(const Tensor& d_gate, const Tensor& d_up, const Tensor& gate,
                               const Tensor& up, const Tensor& d_out, Activation function);
// d_x = R(y (d_out - sum(y d_out))) over the last axis, of y = softmax(x) as it was stored.
void softmax_backward(const Tensor& d_x, const Tensor& y, const Tensor& d_out);
// With r = 1 / sqrt(mean(x^2) + eps), n = x r, g = (offset + w) d_out: d_x = R(r (g - n mean(g
// n))), d_weight = R(sum over rows of d_out m), m being R(n) where the forward rounds it, else n.
void rms_norm_backward(const Tensor& d_x, const Tensor& d_weight, const Tensor& x,
                       const Tensor& weight, const Tensor& d_out, const RmsNormParams&);
// With n = (x - mean) / sqrt(var + eps), g = w d_out: d_x = R((g - mean(g) - n mean(g n)) /
// sqrt(var + eps)), d_weight = R(sum over rows of d_out n), d_bias = R(sum over rows of d_out).
void layer_norm_backward(const Tensor& d_x, const Tensor& d_weight, const Tensor& d_bias,
                         const Tensor& x, const Tensor& weight, const Tensor& d_out, double eps);
// With v = x silu(gate), r = 1 / sqrt(mean(v^2) + eps) of each group, n = v r, g = w d_out and
// h = r (g - n mean(g n)): d_x = R(h silu(gate)), d_gate = R(h x silu'(gate)), d_weight = R(sum
// over rows of d_out R(n)). Dtypes as the forward's: d_gate's is gate's, d_weight's weight's.
void gated_rms_norm_backward(const Tensor& d_x, const Tensor& d_gate, const Tensor& d_weight,
                             const Tensor& x, const Tensor& gate, const Tensor& weight,
                             const Tensor& d_out, const GatedRmsNormParams&);
// d_weight[v] = R(scale times the sum of d_out[i] where ids[i] = v, from the first i on), 0 where
// there is none and in row `padding` (-1: no row). d_out [..., C], d_weight [V, C]. Ids as those
// of lookups. torch's embedding_dense_backward.
void embedding_backward(const Tensor& d_weight, const Tensor& d_out, const Tensor& ids,
                        double scale = 1, int64_t padding = -1);
// The inverse rotation. half: d_x_i = R(R(d_i c_i) + R(d_{i+r/2} s_i')), d_x_{i+r/2} =
// R(R(d_{i+r/2} c_i') - R(d_i s_i)), d being d_out; the rest as rotary.
void rotary_backward(const Tensor& d_x, const Tensor& d_out, const Tensor& cos, const Tensor& sin,
                     RotaryStyle style);
// loss = the mean of log(sum(exp(logits[i]))) - logits[i, labels[i]] over the rows whose label is
// not `ignored`; NaN where there is none. loss [1], f32 (f64 where logits are), logits [N, V],
// labels i64 [N]; one that is neither `ignored` nor in [0, V) throws as an id does.
// torch.nn.functional.cross_entropy.
void cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& labels,
                   int64_t ignored = -100);
// d_logits[i] = R((softmax(logits[i]) - onehot(labels[i])) d_loss / count), count being the rows
// whose label is not `ignored`; 0 in the others.
void cross_entropy_backward(const Tensor& d_logits, const Tensor& logits, const Tensor& labels,
                            const Tensor& d_loss, int64_t ignored = -100);
// The cross entropy of a head: l = R(x W^T), then R(l scale) where the scale is not 1, then
// softcap(l) where there is one; loss as cross_entropy's of l. x [N, K], weight [V, K], loss and
// labels as there. Default: linear, scale, softcap, cross_entropy. A device's own holds a part of
// the logits at a time, rounded alike. transformers: lm_head and ForCausalLMLoss.
void linear_cross_entropy(const Tensor& loss, const Tensor& x, const Tensor& weight,
                          const Tensor& labels, const LogitLossParams&);
// With e = cross_entropy_backward of l, then softcap_backward and R(e scale), where the forward
// has them: d_x = R(e W), d_weight = R(e^T x), the sum over all rows in one accumulator. Default:
// these ops; a device's own makes the logits of some rows, and again those of some columns, which
// it never adds up in storage.
void linear_cross_entropy_backward(const Tensor& d_x, const Tensor& d_weight, const Tensor& x,
                                   const Tensor& weight, const Tensor& labels, const Tensor& d_loss,
                                   const LogitLossParams&);
// Without states: with z = R(the forward's sum) and e = d_out f'(z), or d_out: d_x[b, t, c] =
// R(sum over k of weight[c, 0, k] e[b, t + K - 1 - k, c]), d_weight[c, 0, k] = R(sum over b and t
// of e[b, t, c] x[b, t - K + 1 + k, c]), d_bias = R(sum over b and t of e).
void causal_conv1d_backward(const Tensor& d_x, const Tensor& d_weight, const Tensor& d_bias,
                            const Tensor& x, const Tensor& weight, const Tensor& bias,
                            const Tensor& d_out, std::optional<Activation> function);
// Of sdpa: its operands, its output as it was stored, and the log_sum_exp of its masked scores,
// computed again where it is undefined. With p = exp(score - lse), delta = sum(d_out out), s =
// p (d_out v^T - delta), times the derivative of the softcap: d_q = R(scale s k), d_k = R(scale
// s^T q), d_v = R(p^T d_out), the last two summed over the heads of a group. out, d_out [B, T, H,
// E], lse [B, H, T]; rows without an allowed key as the mask says, but for their q and k, whose
// gradient is 0.
void sdpa_backward(const Tensor& d_q, const Tensor& d_k, const Tensor& d_v, const Tensor& d_out,
                   const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                   const Tensor& lse, const AttentionMask& mask, const SdpaParams&);
// Of ssd_scan: `gradients` are those of the inputs (that of the state may be undefined), d_y and
// d_state_after (may be undefined) those of its results, dtypes alike: in the step form d_y has
// x's. Both forms have one derivative, in which nothing is rounded but dt.
void ssd_scan_backward(const SsdInputs& gradients, const Tensor& d_y, const Tensor& d_state_after,
                       const SsdInputs& in, const SsdParams&);
// d_x = R(d_out W), d_weight = R(d_out^T x) and d_bias = R(sum of d_out), both over all rows.
// Composed: gemm and sum, for whatever rows x has.
void linear_backward(const Tensor& d_x, const Tensor& d_weight, const Tensor& d_bias,
                     const Tensor& x, const Tensor& weight, const Tensor& d_out);
// d_a = R(d_out b^T), d_b = R(a^T d_out), or of b^T, summed over the heads of a group. Composed:
// matmul and gemm.
void matmul_backward(const Tensor& d_a, const Tensor& d_b, const Tensor& a, const Tensor& b,
                     const Tensor& d_out, bool transpose_b);
