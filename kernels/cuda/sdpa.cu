// Attention that is faster than the shared kernel's, where there is such a kernel for the case.
#include "kernels/cuda/sdpa.h"

#if defined(PLUMB_SM90A)
#include "kernels/cuda/sdpa_decode_sm90.h"
#include "kernels/cuda/sdpa_sm90.h"
#endif

namespace plumb::cuda {

#if defined(PLUMB_SM90A)

bool GpuOps::library_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                          const AttentionMask& mask, const SdpaParams& params) {
  if (sm90::decode_sdpa(*this, out, q, k, v, mask, params)) {
    ran_with(sm90::decode_contract());
    return true;
  }
  const std::optional<sm90::SdpaPlan> plan = sm90::plan_sdpa(out, q, k, v, mask, params);
  if (!plan || !choose("sm90", plan->variant())) return false;
  sm90::run_sdpa(*plan, stream(), static_cast<int>(multiprocessors()));
  ran_with(sm90::sdpa_contract(q.dtype()));
  return true;
}

std::vector<Implementation> sdpa_implementations() {
  const std::string_view absent =
      sm90::is_hopper() ? "" : "it needs a GPU of compute capability 9.0";
  return {{OpId::sdpa, {"sm90", "d64"}, absent},
          {OpId::sdpa, {"sm90", "d128"}, absent},
          {OpId::sdpa, {"sm90", "d256"}, absent},
          {OpId::sdpa, {"sm90", "decode128"}, absent},
          {OpId::sdpa, {"sm90", "decode256"}, absent}};
}

#else

std::vector<Implementation> sdpa_implementations() { return {}; }

bool GpuOps::library_sdpa(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          const AttentionMask&, const SdpaParams&) {
  return false;
}

#endif

}  // namespace plumb::cuda
