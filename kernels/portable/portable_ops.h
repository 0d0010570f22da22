// PortableOps: the ops of ops.h that have a kernel in this folder (*.k), on any driver.
#pragma once

#include "kernels/portable/driver.h"
#include "kernels/portable/layout.h"
#include "kernels/portable/partial_ops.h"

namespace plumb::portable {

// The first id that a kernel found outside an axis since the last synchronize(), which throws for
// it: a kernel cannot. As note_unknown() of portable.h writes it.
struct IdError {
  u32 count;
  u32 op;
  i64 id, place, extent;
};

class PortableOps final : public PartialOps {
 public:
  // id_error: of an IdError in the device's memory.
  PortableOps(Device& device, Driver& driver, u64 id_error)
      : PartialOps(device), driver_(driver), id_error_(id_error) {}

  Contract contract(OpId op, DType storage) const override;
  bool overrides(OpId op) const override;

 protected:
  void do_map(const MapCall& call) override;
  void do_reduce(const ReduceCall& call) override;
  void do_cumsum(const Tensor& out, const Tensor& x, int64_t axis) override;

  void do_move(const MoveCall& call) override;
  void do_index_add(const IndexAddCall& call) override;
  void do_copy(const Tensor& out, const Tensor& x) override;
  void do_cast(const Tensor& out, const Tensor& x) override;
  void do_transpose(const Tensor& out, const Tensor& x) override;
  void do_repeat_heads(const Tensor& out, const Tensor& x) override;
  void do_mask_rows(const Tensor& out, const Tensor& x, const Tensor& valid) override;
  void do_mask_fill(const Tensor& out, const Tensor& x, const Tensor& mask, double value) override;
  void do_generate(const GenerateCall& call) override;
  void do_position_ids(const Tensor& out, const Tensor& valid, int64_t offset) override;

  void do_embedding(const Tensor& out, const Tensor& ids, const Tensor& weight,
                    double scale) override;
  void do_rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                   const RmsNormParams& params) override;
  void do_gated_rms_norm(const Tensor& out, const Tensor& x, const Tensor& gate,
                         const Tensor& weight, const GatedRmsNormParams& params) override;
  void do_layer_norm(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& bias,
                     double eps) override;
  void do_group_norm(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& bias,
                     const GroupNormParams& params) override;
  void do_softmax(const Tensor& out, const Tensor& x) override;
  void do_softmax_backward(const Tensor& d_x, const Tensor& y, const Tensor& d_out) override;
  void do_rms_norm_backward(const Tensor& d_x, const Tensor& d_weight, const Tensor& x,
                            const Tensor& weight, const Tensor& d_out,
                            const RmsNormParams& params) override;
  void do_layer_norm_backward(const Tensor& d_x, const Tensor& d_weight, const Tensor& d_bias,
                              const Tensor& x, const Tensor& weight, const Tensor& d_out,
                              double eps) override;
  void do_embedding_backward(const Tensor& d_weight, const Tensor& d_out, const Tensor& ids,
                             double scale, int64_t padding) override;
  void do_cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& labels,
                        int64_t ignored) override;
  void do_cross_entropy_backward(const Tensor& d_logits, const Tensor& logits, const Tensor& labels,
                                 const Tensor& d_loss, int64_t ignored) override;
  void do_top_k(const Tensor& values, const Tensor& ids, const Tensor& x, bool largest) override;

  void do_linear(const Tensor& out, const Tensor& x, const Tensor& weight,
                 const Tensor& bias) override;
  void do_gemm(const GemmCall& call) override;
  void do_masked_add(const Tensor& out, const Tensor& x, const Tensor& mask) override;
  void do_causal_mask(const Tensor& out, const AttentionMask& mask) override;
  void do_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
               const AttentionMask& mask, const SdpaParams& params) override;
  void do_rotary_table(const Tensor& cos, const Tensor& sin, const Tensor& positions,
                       const Tensor& inv_freq, double attention_scaling) override;
  void do_rotary(const Tensor& out, const Tensor& x, const Tensor& cos, const Tensor& sin,
                 RotaryStyle style) override;
  void do_rotary_backward(const Tensor& d_x, const Tensor& d_out, const Tensor& cos,
                          const Tensor& sin, RotaryStyle style) override;

  void do_convolve(const ConvCall& call) override;
  void do_pool(const PoolCall& call) override;
  void do_upsample_nearest2d(const Tensor& out, const Tensor& x) override;
  void do_causal_conv1d(const Tensor& out, const Tensor& state_after, const Tensor& x,
                        const Tensor& weight, const Tensor& bias, const Tensor& state_before,
                        std::optional<Activation> function) override;
  void do_ssd_scan(const Tensor& y, const Tensor& state_after, const SsdInputs& in,
                   const SsdParams& params) override;

 private:
  // How kernels read that dtype; throws Unsupported.
  Storage storage_of(const char* op, DType dtype);
  // The same as a number, for load_as, which has bool, too.
  i32 storage_number(const char* op, DType dtype);

  // The same of whole numbers, for whole_at, where it is one.
  static std::optional<i32> whole_number(DType dtype);
  // Of all operands, as load_as or as whole_at of portable.h reads them.
  i32 number_of(const char* op, DType dtype, bool whole);

  template <class Arguments>
  void launch(const char* op, const char* kernel, Storage storage, int64_t groups,
              const Arguments& arguments, int variant = 0) {
    static_assert(sizeof(Arguments) % 8 == 0 && sizeof(Arguments) <= 1024);
    queue(op, kernel, storage, groups, &arguments, sizeof arguments, variant);
  }
  void queue(const char* op, const char* kernel, Storage storage, int64_t groups,
             const void* arguments, size_t bytes, int variant);
  // Groups of a kernel whose threads own an element each.
  static int64_t groups_for(const char* kernel, int64_t items) {
    const int64_t threads = kernel_source(kernel).threads;
    return (items + threads - 1) / threads;
  }

  // Bits of one dtype, where a flag, if there are any, is `moves`; else those of `value`.
  struct Flags {
    Tensor t = {};
    Strides strides = {};
    bool moves = true;
    double value = 0;
  };
  void move_bits(const char* op, const Tensor& out, const Shape& shape, const Strides& to, u64 x,
                 const Strides& from, const Flags& flags);
  // The gradient of a norm, of which p has what is its own.
  void norm_backward(const char* op, NormBackwardArguments p, const Tensor& d_x,
                     const Tensor& d_weight, const Tensor& d_bias, const Tensor& x,
                     const Tensor& weight, const Tensor& d_out);
  void cross_entropy(OpId op, const Tensor& loss, const Tensor& d_logits, const Tensor& logits,
                     const Tensor& labels, int64_t ignored);
  void turn(const char* op, const Tensor& out, const Tensor& x, const Tensor& cos,
            const Tensor& sin, RotaryStyle style, bool inverse);
  // The tensor itself, or a copy of it in scratch memory.
  Tensor dense(const Tensor& t);

  Driver& driver_;
  u64 id_error_;
};

}  // namespace plumb::portable
