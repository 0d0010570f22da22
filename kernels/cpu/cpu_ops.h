// The ops of the CPU device; one file per op. Where each op rounds: kernels/ops/ops.h.
#pragma once

#include "kernels/core/thread_pool.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd.h"
#include "kernels/ops/device_ops.h"

namespace plumb::cpu {

struct Gemm;

class CpuOps final : public DeviceOps {
 public:
  // `simd` is what runs unless --impl says otherwise.
  CpuOps(Device& device, const Simd& simd, int threads, bool use_onednn);

  Contract contract(OpId op, DType storage) const override;
  bool overrides(OpId op) const override { return is_fused(op) && !is_composition(op); }
  std::vector<LinearWay> linear_ways(const LinearShape& shape) override;
  TunedLinears* tuned_linears() override { return &tuned_; }

 protected:
  PLUMB_DEVICE_OPS(, override)
  void do_add_rms_norm(const Tensor& sum, const Tensor& out, const Tensor& x,
                       const Tensor& residual, const Tensor& weight, const RmsNormParams&) override;
  void do_linear_cross_entropy(const Tensor& loss, const Tensor& x, const Tensor& weight,
                               const Tensor& labels, const LogitLossParams&) override;
  void do_linear_cross_entropy_backward(const Tensor& d_x, const Tensor& d_weight, const Tensor& x,
                                        const Tensor& weight, const Tensor& labels,
                                        const Tensor& d_loss, const LogitLossParams&) override;
  void do_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
               const AttentionMask& mask, const SdpaParams&) override;

 private:
  // The storage format of a call; throws Unsupported for other dtypes than f32, f16 and bf16.
  // For ops with one kernel, which is named after the instruction set alone: settles for one.
  Format format(const char* op, const Tensor& t);
  void settle_for_simd();
  void settle_for_simd(std::string_view kernel);
  // For ops with several: sets simd_, the default one first; false when --impl excludes them all.
  bool choose_simd(std::string_view kernel);
  void require_storage(const char* op, const Tensor& t) const;
  // A linear in one of its ways, if it can compute it.
  bool linear_by(std::string_view kernel, const Gemm& gemm, const Tensor& x);
  // Rotary, or its inverse.
  void turn(const char* op, const Tensor& out, const Tensor& x, const Tensor& cos,
            const Tensor& sin, RotaryStyle style, bool inverse);
  // LogitLossKernels::statistics, kernels/ops/logit_loss.h.
  void logit_statistics(const char* op, const Tensor& stats, const Tensor& logits,
                        const Tensor& labels, int64_t ignored);
  void ssd_chunks(const Tensor& y, const Tensor& state_after, const SsdInputs& in,
                  const SsdParams& params);
  void ssd_step(const Tensor& y, const Tensor& state_after, const SsdInputs& in);
  // The call's formula, element by element, of as many tensors as are given: the output first.
  template <size_t Tensors>
  void elementwise(const MapCall& call, const std::array<const Tensor*, Tensors>& all);

  // out[.., j, i] = x[.., i, j].
  void exchange_last_axes(const Tensor& out, const Tensor& x);
  void reduce_rows(const ReduceCall& call, const ReductionRow& f);
  void reduce_columns(const ReduceCall& call, const ReductionRow& f);

  std::vector<const Simd*> simds_;  // that run here, the default one first
  const Simd* simd_;                // of the op that runs
  ThreadPool pool_;
  const bool use_onednn_;
  TunedLinears tuned_;
};

}  // namespace plumb::cpu
