// GpuOps: the ops of ops.h on a GPU vendor, one source for all. What a vendor library does better
// sits behind library_linear, library_gemm and library_sdpa.
#pragma once

#include <memory>

#include "kernels/gpu/gpu.h"
#include "kernels/gpu/held_back.h"
#include "kernels/gpu/in_flight.h"
#include "kernels/ops/device_ops.h"

namespace plumb::PLUMB_GPU_VENDOR {

// The first id that a kernel found outside an axis since the last synchronize(), which throws for
// it: a kernel cannot.
struct IdError {
  int count;
  OpId op;
  int64_t id, place, extent;
};

class GpuOps final : public DeviceOps {
 public:
  // id_error, tickets: in device memory, zero; multiprocessors: for how many blocks are worth
  // launching.
  GpuOps(Device& device, Stream stream, IdError* id_error, unsigned* tickets, int multiprocessors)
      : DeviceOps(device, compiled()),
        held_(stream, multiprocessors),
        stream_(stream),
        id_error_(id_error),
        tickets_(tickets),
        multiprocessors_(multiprocessors) {}

  Contract contract(OpId op, DType storage) const override;
  bool overrides(OpId op) const override { return is_fused(op) && !is_composition(op); }
  std::vector<LinearWay> linear_ways(const LinearShape& shape) override;
  TunedLinears* tuned_linears() override { return &tuned_; }
  bool reads_positions() const override { return runs_fused(OpId::sdpa); }
  bool follows_writes() const override { return true; }
  void note_writes(const std::vector<Tensor>& written) override { in_flight_.note(written); }

  // For the functions behind the ops.
  using Ops::choose;
  using Ops::settle_for;
  // What was held back goes first.
  Stream stream() {
    held_.release();
    return stream_;
  }
  HeldBack& held() { return held_; }
  InFlight& in_flight() { return in_flight_; }
  int64_t multiprocessors() const { return multiprocessors_; }
  // So many, for last_to_pass() of the launch that is queued next.
  unsigned* tickets(int64_t count);
  static constexpr int kTickets = 4;  // per multiprocessor

 protected:
  PLUMB_DEVICE_OPS(, override)
  void do_copy_pair(const Tensor& out_a, const Tensor& a, const Tensor& out_b,
                    const Tensor& b) override;
  void do_add_rms_norm(const Tensor& sum, const Tensor& out, const Tensor& x,
                       const Tensor& residual, const Tensor& weight,
                       const RmsNormParams& params) override;
  void do_linear_cross_entropy(const Tensor& loss, const Tensor& x, const Tensor& weight,
                               const Tensor& labels, const LogitLossParams&) override;
  void do_linear_cross_entropy_backward(const Tensor& d_x, const Tensor& d_weight, const Tensor& x,
                                        const Tensor& weight, const Tensor& labels,
                                        const Tensor& d_loss, const LogitLossParams&) override;
  void do_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
               const AttentionMask& mask, const SdpaParams& params) override;

  void do_store_tokens(const Tensor& key_slots, const Tensor& value_slots, const Tensor& k,
                       const Tensor& v, const Position& past,
                       std::optional<int64_t> window) override;
  void do_advance(const Position& past, int64_t tokens) override;
  void do_argmax(const Tensor& ids, const Tensor& log, const Tensor& logits,
                 const Position& past) override;

 private:
  IdError* id_error() const { return id_error_; }

  // The vendor's own way, where it has one for this case: true when it did the work. Defined per
  // vendor in kernels/cuda, kernels/hip, kernels/emu.
  // `algorithm`: one of library_algorithms(), or empty: the library's own choice.
  bool library_linear(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const std::string& algorithm = {});
  std::vector<std::string> library_algorithms(const LinearShape& shape);
  bool library_gemm(const GemmCall& call);
  bool library_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                    const AttentionMask& mask, const SdpaParams& params);
  // Few query tokens over many keys: true when it did the work.
  bool decode_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                   const AttentionMask& mask, const SdpaParams& params);
  // Rotary, or its inverse.
  void turn(const char* op, const Tensor& out, const Tensor& x, const Tensor& cos,
            const Tensor& sin, RotaryStyle style, bool inverse);
  void ssd_chunks(const Tensor& y, const Tensor& state_after, const SsdInputs& in,
                  const SsdParams& params);
  void ssd_step(const Tensor& y, const Tensor& state_after, const SsdInputs& in);
  static std::vector<Implementation> library_implementations();
  // Every implementation of this device: those of kernels/gpu and the library's.
  static std::vector<Implementation> compiled();
  // The accumulator of the library's products for a storage dtype, or the kernels' own.
  Accumulator product_accumulator(DType storage) const;

  struct Library;  // handles and plans of the vendor's library, made when first used
  std::shared_ptr<Library> library_;
  HeldBack held_;
  InFlight in_flight_;
  Stream stream_;
  IdError* id_error_;
  unsigned* tickets_;
  int multiprocessors_;
  TunedLinears tuned_;
};

}  // namespace plumb::PLUMB_GPU_VENDOR
