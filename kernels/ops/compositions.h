// Default compositions of the fused ops: what --no-fuse runs. Protected members of class Ops. No
// include guard: it is read inside of the class, once.
void compose_gated_activation(const Tensor& out, const Tensor& gate, const Tensor& up,
                              Activation function);
void compose_softcap(const Tensor& out, const Tensor& x, double cap);
void compose_scaled_add(const Tensor& out, const Tensor& x, const Tensor& residual, double factor);
void compose_add_rms_norm(const Tensor& sum, const Tensor& out, const Tensor& x,
                          const Tensor& residual, const Tensor& weight, const RmsNormParams&);
void compose_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                  const AttentionMask& mask, const SdpaParams&);
void compose_linear_cross_entropy(const Tensor& loss, const Tensor& x, const Tensor& weight,
                                  const Tensor& labels, const LogitLossParams&);
void compose_linear_cross_entropy_backward(const Tensor& d_x, const Tensor& d_weight,
                                           const Tensor& x, const Tensor& weight,
                                           const Tensor& labels, const Tensor& d_loss,
                                           const LogitLossParams&);
void compose_linear_backward(const Tensor& d_x, const Tensor& d_weight, const Tensor& d_bias,
                             const Tensor& x, const Tensor& weight, const Tensor& d_out);
void compose_matmul_backward(const Tensor& d_a, const Tensor& d_b, const Tensor& a, const Tensor& b,
                             const Tensor& d_out, bool transpose_b);
void compose_quantised_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                            const Tensor& k_scales, const Tensor& v_scales,
                            const AttentionMask& mask, const SdpaParams&);
// The same of what runs at once: copies, and an upload.
void compose_store_tokens(const Tensor& key_slots, const Tensor& value_slots, const Tensor& k,
                          const Tensor& v, const Position& past, std::optional<int64_t> window);
void compose_advance(const Position& past, int64_t tokens);
void compose_argmax(const Tensor& ids, const Tensor& log, const Tensor& logits,
                    const Position& past);

// Both in chunks of logits, of a device's kernels for them (kernels/ops/logit_loss.h).
void chunked_linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& labels,
                                  const LogitLossParams&, const LogitLossKernels&);
void chunked_linear_cross_entropy_backward(const Tensor& d_x, const Tensor& d_weight,
                                           const Tensor& x, const Tensor& weight,
                                           const Tensor& labels, const LogitLossParams&,
                                           const LogitLossKernels&);
