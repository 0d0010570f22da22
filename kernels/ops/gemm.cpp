// Argument checks and dispatch of gemm.
#include "kernels/ops/device_ops.h"
#include "kernels/ops/fits.h"
#include "kernels/ops/gemm_call.h"
#include "kernels/ops/op_checks.h"

namespace plumb {

namespace {

// Sums of whole numbers are added up and nothing else, so that they are exact.
void require_whole_factors(const Tensor& a, const GemmParams& params) {
  if (!is_whole(a.dtype())) return;
  require(params.alpha == 1 && (params.beta == 0 || params.beta == 1) && !params.function, "gemm",
          "a is ", name_of(a.dtype()), ", alpha ", params.alpha, " and beta ", params.beta,
          ": of whole numbers alpha is 1, beta 0 or 1, and there is no function");
}

}  // namespace

const Signature& gemm_signature(const GemmParams& params) {
  if (params.transpose_a) return params.transpose_b ? kGemmOfBothTransposed : kGemmOfTransposedA;
  return params.transpose_b ? kGemmOfTransposedB : kGemm;
}

void Ops::gemm(const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& c,
               const Tensor& bias, const GemmParams& params) {
  const auto checked_as = [&]<const Signature & s>() {
    return check_as<s>(OpId::gemm, device_, takes_narrow_weights(), out, a, b, c, bias);
  };
  const CheckedCall call = [&] {
    if (params.transpose_a) {
      return params.transpose_b ? checked_as.template operator()<kGemmOfBothTransposed>()
                                : checked_as.template operator()<kGemmOfTransposedA>();
    }
    return params.transpose_b ? checked_as.template operator()<kGemmOfTransposedB>()
                              : checked_as.template operator()<kGemm>();
  }();
  require(out.rank() <= 4, "gemm", "out has shape ", out.shape(), ", at most two axes of batches ",
          "are implemented: view them as one");
  require(params.beta == 0 || c.defined(), "gemm", "beta is ", params.beta,
          ", but there is no c: give one, or a beta of 0");
  require_whole_factors(a, params);
  for (const Tensor* t : {&c, &bias}) {
    if (t->defined()) require_dtype("gemm", t == &c ? "c" : "bias", *t, out.dtype());
  }
  const auto wide = [](Tensor t) {
    while (t.defined() && t.rank() < 4) t = t.with_axis(0);
    return t;
  };
  const GemmCall product{
      call.row, wide(out), wide(a), wide(b), params.beta != 0 ? wide(c) : Tensor(), bias, params};
  run_op<&Ops::gemm>(
      OpId::gemm, [&](DeviceOps& device) { device.do_gemm(product); }, out, a, b, c, bias, params);
  const std::array<int64_t, 1> sums{product.inner()};
  record(OpId::gemm, sums_of(call.storage), sums);
}

}  // namespace plumb
