// DeviceOps: what a device implements, one function per op of ops.h. Operands are checked already.
#pragma once

#include <utility>

#include "kernels/ops/gemm_call.h"
#include "kernels/ops/generate_call.h"
#include "kernels/ops/map_call.h"
#include "kernels/ops/move_call.h"
#include "kernels/ops/ops.h"
#include "kernels/ops/quantised_call.h"
#include "kernels/ops/reduce_call.h"
#include "kernels/ops/window_calls.h"

#define PLUMB_BACKWARD_OPS(qualifier, ending)                                                     \
  qualifier void do_softmax_backward(const Tensor& d_x, const Tensor& y, const Tensor& d_out)     \
      ending;                                                                                     \
  qualifier void do_rms_norm_backward(const Tensor& d_x, const Tensor& d_weight, const Tensor& x, \
                                      const Tensor& weight, const Tensor& d_out,                  \
                                      const RmsNormParams&) ending;                               \
  qualifier void do_layer_norm_backward(                                                          \
      const Tensor& d_x, const Tensor& d_weight, const Tensor& d_bias, const Tensor& x,           \
      const Tensor& weight, const Tensor& d_out, double eps) ending;                              \
  qualifier void do_gated_rms_norm_backward(                                                      \
      const Tensor& d_x, const Tensor& d_gate, const Tensor& d_weight, const Tensor& x,           \
      const Tensor& gate, const Tensor& weight, const Tensor& d_out, const GatedRmsNormParams&)   \
      ending;                                                                                     \
  qualifier void do_embedding_backward(const Tensor& d_weight, const Tensor& d_out,               \
                                       const Tensor& ids, double scale, int64_t padding) ending;  \
  qualifier void do_rotary_backward(const Tensor& d_x, const Tensor& d_out, const Tensor& cos,    \
                                    const Tensor& sin, RotaryStyle style) ending;                 \
  qualifier void do_cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& labels, \
                                  int64_t ignored) ending;                                        \
  qualifier void do_cross_entropy_backward(const Tensor& d_logits, const Tensor& logits,          \
                                           const Tensor& labels, const Tensor& d_loss,            \
                                           int64_t ignored) ending;                               \
  qualifier void do_causal_conv1d_backward(                                                       \
      const Tensor& d_x, const Tensor& d_weight, const Tensor& d_bias, const Tensor& x,           \
      const Tensor& weight, const Tensor& bias, const Tensor& d_out,                              \
      std::optional<Activation> function) ending;                                                 \
  qualifier void do_sdpa_backward(const Tensor& d_q, const Tensor& d_k, const Tensor& d_v,        \
                                  const Tensor& d_out, const Tensor& q, const Tensor& k,          \
                                  const Tensor& v, const Tensor& out, const Tensor& lse,          \
                                  const AttentionMask& mask, const SdpaParams&) ending;           \
  qualifier void do_ssd_scan_backward(const SsdInputs& gradients, const Tensor& d_y,              \
                                      const Tensor& d_state_after, const SsdInputs& in,           \
                                      const SsdParams&) ending;

// Every op that each device has to have, declared in one place for all of them.
#define PLUMB_DEVICE_OPS(qualifier, ending)                                                       \
  qualifier void do_embedding(const Tensor& out, const Tensor& ids, const Tensor& weight,         \
                              double scale) ending;                                               \
  qualifier void do_rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight,            \
                             const RmsNormParams&) ending;                                        \
  qualifier void do_layer_norm(const Tensor& out, const Tensor& x, const Tensor& weight,          \
                               const Tensor& bias, double eps) ending;                            \
  qualifier void do_linear(const Tensor& out, const Tensor& x, const Tensor& weight,              \
                           const Tensor& bias) ending;                                            \
  qualifier void do_map(const MapCall& call) ending;                                              \
  qualifier void do_reduce(const ReduceCall& call) ending;                                        \
  qualifier void do_group_norm(const Tensor& out, const Tensor& x, const Tensor& weight,          \
                               const Tensor& bias, const GroupNormParams&) ending;                \
  qualifier void do_convolve(const ConvCall& call) ending;                                        \
  qualifier void do_pool(const PoolCall& call) ending;                                            \
  qualifier void do_upsample_nearest2d(const Tensor& out, const Tensor& x) ending;                \
  qualifier void do_move(const MoveCall& call) ending;                                            \
  qualifier void do_index_add(const IndexAddCall& call) ending;                                   \
  qualifier void do_top_k(const Tensor& values, const Tensor& ids, const Tensor& x, bool largest) \
      ending;                                                                                     \
  qualifier void do_generate(const GenerateCall& call) ending;                                    \
  qualifier void do_dequantize(const Tensor& out, const QuantisedWeight& weight) ending;          \
  qualifier void do_quantize(const QuantizeCall& call) ending;                                    \
  qualifier void do_quantised_linear(const QuantisedLinearCall& call) ending;                     \
  qualifier void do_softmax(const Tensor& out, const Tensor& x) ending;                           \
  qualifier void do_gemm(const GemmCall& call) ending;                                            \
  qualifier void do_masked_add(const Tensor& out, const Tensor& x, const Tensor& mask) ending;    \
  qualifier void do_repeat_heads(const Tensor& out, const Tensor& x) ending;                      \
  qualifier void do_rotary_table(const Tensor& cos, const Tensor& sin, const Tensor& positions,   \
                                 const Tensor& inv_freq, double attention_scaling) ending;        \
  qualifier void do_rotary(const Tensor& out, const Tensor& x, const Tensor& cos,                 \
                           const Tensor& sin, RotaryStyle style) ending;                          \
  qualifier void do_causal_mask(const Tensor& out, const AttentionMask& mask) ending;             \
  qualifier void do_copy(const Tensor& out, const Tensor& x) ending;                              \
  qualifier void do_cast(const Tensor& out, const Tensor& x) ending;                              \
  qualifier void do_mask_rows(const Tensor& out, const Tensor& x, const Tensor& valid) ending;    \
  qualifier void do_transpose(const Tensor& out, const Tensor& x) ending;                         \
  qualifier void do_mask_fill(const Tensor& out, const Tensor& x, const Tensor& mask,             \
                              double value) ending;                                               \
  qualifier void do_cumsum(const Tensor& out, const Tensor& x, int64_t axis) ending;              \
  qualifier void do_position_ids(const Tensor& out, const Tensor& valid, int64_t offset) ending;  \
  qualifier void do_causal_conv1d(                                                                \
      const Tensor& out, const Tensor& state_after, const Tensor& x, const Tensor& weight,        \
      const Tensor& bias, const Tensor& state_before, std::optional<Activation> function) ending; \
  qualifier void do_ssd_scan(const Tensor& y, const Tensor& state_after, const SsdInputs& in,     \
                             const SsdParams&) ending;                                            \
  qualifier void do_gated_rms_norm(const Tensor& out, const Tensor& x, const Tensor& gate,        \
                                   const Tensor& weight, const GatedRmsNormParams&) ending;       \
  PLUMB_BACKWARD_OPS(qualifier, ending)

namespace plumb {

class DeviceOps : public Ops {
 public:
  using Ops::Ops;

 protected:
  PLUMB_DEVICE_OPS(virtual, = 0)

  // Bodies here compose: what a device has no kernel of its own for.
  virtual void do_copy_pair(const Tensor& out_a, const Tensor& a, const Tensor& out_b,
                            const Tensor& b) {
    do_copy(out_a, a);
    do_copy(out_b, b);
  }
  virtual void do_add_rms_norm(const Tensor& sum, const Tensor& out, const Tensor& x,
                               const Tensor& residual, const Tensor& weight,
                               const RmsNormParams& params) {
    compose_add_rms_norm(sum, out, x, residual, weight, params);
  }
  virtual void do_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                       const AttentionMask& mask, const SdpaParams& params) {
    compose_sdpa(out, q, k, v, mask, params);
  }
  virtual void do_linear_cross_entropy(const Tensor& loss, const Tensor& x, const Tensor& weight,
                                       const Tensor& labels, const LogitLossParams& params) {
    compose_linear_cross_entropy(loss, x, weight, labels, params);
  }
  virtual void do_linear_cross_entropy_backward(const Tensor& d_x, const Tensor& d_weight,
                                                const Tensor& x, const Tensor& weight,
                                                const Tensor& labels, const Tensor& d_loss,
                                                const LogitLossParams& params) {
    compose_linear_cross_entropy_backward(d_x, d_weight, x, weight, labels, d_loss, params);
  }
  virtual void do_linear_backward(const Tensor& d_x, const Tensor& d_weight, const Tensor& d_bias,
                                  const Tensor& x, const Tensor& weight, const Tensor& d_out) {
    compose_linear_backward(d_x, d_weight, d_bias, x, weight, d_out);
  }
  virtual void do_matmul_backward(const Tensor& d_a, const Tensor& d_b, const Tensor& a,
                                  const Tensor& b, const Tensor& d_out, bool transpose_b) {
    compose_matmul_backward(d_a, d_b, a, b, d_out, transpose_b);
  }
  virtual void do_store_tokens(const Tensor& key_slots, const Tensor& value_slots, const Tensor& k,
                               const Tensor& v, const Position& past,
                               std::optional<int64_t> window) {
    compose_store_tokens(key_slots, value_slots, k, v, past, window);
  }
  virtual void do_advance(const Position& past, int64_t tokens) { compose_advance(past, tokens); }
  virtual void do_argmax(const Tensor& ids, const Tensor& log, const Tensor& logits,
                         const Position& past) {
    compose_argmax(ids, log, logits, past);
  }

  // What an op is about to write, for devices that read ahead of their queue.
  virtual bool follows_writes() const { return false; }
  virtual void note_writes(const std::vector<Tensor>&) {}

 private:
  friend class Ops;
  DeviceOps* own() final { return this; }
};

template <auto method, class Body, class... Arguments>
void Ops::run_op(OpId op, Body body, const Arguments&... arguments) {
  choice_.begin(op);
  if (DeviceOps* device = own()) {
    if (device->follows_writes()) {
      device->note_writes(op_call<method>(op, arguments...).outputs());
    }
    body(*device);
  } else {
    do_call(op_call<method>(op, arguments...));
  }
}

template <class Parts>
void Ops::run_within(OpId op, const Parts& parts) {
  struct Unrecorded {
    std::vector<OpRecord>*&records, *kept = std::exchange(records, nullptr);
    ~Unrecorded() { records = kept; }
  };
  const Unrecorded scope{records_};
  parts();
  choice_.begin(op);
}

template <auto method, auto body, class... Arguments>
void Ops::dispatch(const CheckedCall& call, const Arguments&... arguments) {
  run_op<method>(
      call.row.id, [&](DeviceOps& device) { (device.*body)(arguments...); }, arguments...);
  record(call);
}

template <auto method, auto body, class... Arguments>
void Ops::dispatch(OpId op, DType storage, std::initializer_list<int64_t> sums,
                   const Arguments&... arguments) {
  run_op<method>(
      op, [&](DeviceOps& device) { (device.*body)(arguments...); }, arguments...);
  record(op, storage, {sums.begin(), sums.size()});
}

template <auto method, class... Arguments>
void Ops::dispatch_map(const CheckedCall& call, const MapCall& map, const Arguments&... arguments) {
  run_op<method>(
      call.row.id, [&](DeviceOps& device) { device.do_map(map); }, arguments...);
  record(call);
}

template <auto method, class... Arguments>
void Ops::dispatch_maps(const CheckedCall& call, std::initializer_list<const MapCall*> maps,
                        const Arguments&... arguments) {
  const auto run = [&](DeviceOps& device) {
    for (const MapCall* map : maps) device.do_map(*map);
  };
  run_op<method>(call.row.id, run, arguments...);
  record(call);
}

template <auto method, class... Arguments>
void Ops::run_move(const CheckedCall& call, std::initializer_list<const MoveCall*> moves,
                   const Arguments&... arguments) {
  const auto run = [&](DeviceOps& device) {
    for (const MoveCall* move : moves) device.do_move(*move);
  };
  run_op<method>(call.row.id, run, arguments...);
  record(call);
}

// The longest sum is of all elements along the axis, and that of x.
template <auto method, class... Arguments>
void Ops::dispatch_index_add(const CheckedCall& call, const IndexAddCall& add,
                             const Arguments&... arguments) {
  const auto run = [&](DeviceOps& device) { device.do_index_add(add); };
  run_op<method>(call.row.id, run, arguments...);
  const std::array<int64_t, 1> sums{add.source.dim(add.axis) + 1};
  record(call.row.id, call.storage, sums);
}

template <auto method, class... Arguments>
void Ops::dispatch_generate(const CheckedCall& call, const GenerateCall& generate,
                            const Arguments&... arguments) {
  const auto run = [&](DeviceOps& device) { device.do_generate(generate); };
  run_op<method>(call.row.id, run, arguments...);
  record(call);
}

}  // namespace plumb
