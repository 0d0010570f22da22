#include "tests/faults/fault.h"
#include "tests/faults/wrong_ops.h"

namespace plumb::harness::testing {
namespace {

// The spec of a right RMSNorm, changed.
Fault rms_fault(const char* name, const std::function<void(NormSpec&)>& wrong,
                bool narrow_only = false) {
  return {"rms_norm",
          name,
          {.rms_norm =
               [wrong](Call&, auto& out, auto& x, auto& w, auto& p) {
                 NormSpec spec{.eps = p.eps, .offset = p.weight_offset};
                 spec.round_normalised = p.rounding == WeightRounding::before;
                 wrong(spec);
                 wrong_norm(out, x, w, {}, spec);
               }},
          narrow_only};
}

// Right arithmetic on the device, other parameters.
Fault rms_params_fault(const char* name, const std::function<void(RmsNormParams&)>& wrong) {
  return {"rms_norm", name, {.rms_norm = [wrong](Call& c, auto& out, auto& x, auto& w, auto p) {
            wrong(p);
            c.ops.rms_norm(out, x, w, p);
          }}};
}

Fault rms_weight_fault(const char* name, const std::function<void(Values&, double offset)>& wrong) {
  return {"rms_norm", name, {.rms_norm = [wrong](Call& c, auto& out, auto& x, auto& w, auto& p) {
            c.ops.rms_norm(out, x, changed(c.ops, w, [&](Values& v) { wrong(v, p.weight_offset); }),
                           p);
          }}};
}

Fault layer_fault(const char* name, const std::function<void(NormSpec&)>& wrong,
                  bool narrow_only = false) {
  return {"layer_norm",
          name,
          {.layer_norm =
               [wrong](Call&, auto& out, auto& x, auto& w, auto& b, double eps) {
                 NormSpec spec{.eps = eps, .subtract_mean = true, .centred_variance = true};
                 wrong(spec);
                 wrong_norm(out, x, w, b, spec);
               }},
          narrow_only};
}

}  // namespace

std::vector<Fault> rms_norm_faults() {
  using Eps = NormSpec::Eps;
  return {
      rms_params_fault("eps 1e-5 for 1e-6 and the reverse",
                       [](RmsNormParams& p) { p.eps = p.eps == 1e-5 ? 1e-6 : 1e-5; }),
      rms_fault("eps after the root", [](NormSpec& s) { s.place = Eps::after_root; }),
      rms_fault("eps in the sum", [](NormSpec& s) { s.place = Eps::in_the_sum; }),
      rms_weight_fault("weight ignored",
                       [](Values& v, double offset) { v.assign(v.size(), 1 - offset); }),
      rms_weight_fault("last channel without weight",
                       [](Values& v, double offset) { v.back() = 1 - offset; }),
      rms_fault("mean subtracted",
                [](NormSpec& s) { s.subtract_mean = s.centred_variance = true; }),
      rms_fault("mean of n + 1 terms", [](NormSpec& s) { s.divisor = 1; }),
      rms_fault("mean of n - 1 terms", [](NormSpec& s) { s.divisor = -1; }),
      rms_fault("last term dropped", [](NormSpec& s) { s.dropped = 1; }),
      rms_fault("mean absolute value", [](NormSpec& s) { s.absolute = true; }),
      rms_fault("root missing", [](NormSpec& s) { s.squared = true; }),
      rms_fault("first row's statistics for all rows",
                [](NormSpec& s) { s.shared_statistics = true; }),
      rms_fault(
          "sum in the storage dtype", [](NormSpec& s) { s.storage_sums = true; }, true),
      rms_fault(
          "squares rounded to storage", [](NormSpec& s) { s.round_squares = true; }, true),
      rms_fault(
          "1 + w rounded to storage", [](NormSpec& s) { s.round_gain = s.round_normalised = true; },
          true),
      rms_fault(
          "truncating store", [](NormSpec& s) { s.truncate = true; }, true),
  };
}

std::vector<Fault> layer_norm_faults() {
  using Eps = NormSpec::Eps;
  return {
      layer_fault("eps missing", [](NormSpec& s) { s.eps = 0; }),
      layer_fault("eps 1e-6", [](NormSpec& s) { s.eps = 1e-6; }),
      layer_fault("eps after the root", [](NormSpec& s) { s.place = Eps::after_root; }),
      layer_fault("eps in the sum", [](NormSpec& s) { s.place = Eps::in_the_sum; }),
      layer_fault("unbiased variance", [](NormSpec& s) { s.divisor = -1; }),
      layer_fault("mean of n + 1 terms", [](NormSpec& s) { s.divisor = 1; }),
      layer_fault("mean not subtracted", [](NormSpec& s) { s.subtract_mean = false; }),
      layer_fault("variance not centred", [](NormSpec& s) { s.centred_variance = false; }),
      layer_fault("bias added twice", [](NormSpec& s) { s.bias = 2; }),
      layer_fault("1 + w", [](NormSpec& s) { s.offset = 1; }),
      layer_fault("root missing", [](NormSpec& s) { s.squared = true; }),
      layer_fault("last term dropped", [](NormSpec& s) { s.dropped = 1; }),
      layer_fault("first row's statistics for all rows",
                  [](NormSpec& s) { s.shared_statistics = true; }),
      layer_fault(
          "rounded before the weight", [](NormSpec& s) { s.round_normalised = true; }, true),
      layer_fault(
          "sum in the storage dtype", [](NormSpec& s) { s.storage_sums = true; }, true),
  };
}

}  // namespace plumb::harness::testing
