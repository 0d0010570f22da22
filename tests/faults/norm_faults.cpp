#include <algorithm>

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
Fault rms_params_fault(const char* name, const std::function<void(RmsNormParams&)>& wrong,
                       bool narrow_only = false) {
  return {"rms_norm",
          name,
          {.rms_norm =
               [wrong](Call& c, auto& out, auto& x, auto& w, RmsNormParams p) {
                 wrong(p);
                 c.ops.rms_norm(out, x, w, p);
               }},
          narrow_only};
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

Fault layer_weight_fault(const char* name, const std::function<void(Values&)>& wrong) {
  return {"layer_norm",
          name,
          {.layer_norm = [wrong](Call& c, auto& out, auto& x, auto& w, auto& b, double eps) {
            c.ops.layer_norm(out, x, changed(c.ops, w, wrong), b, eps);
          }}};
}

void rotated_by_one(Values& v) { std::rotate(v.begin(), v.begin() + 1, v.end()); }

}  // namespace

std::vector<Fault> rms_norm_faults() {
  using Eps = NormSpec::Eps;
  return {
      rms_params_fault("eps missing", [](RmsNormParams& p) { p.eps = 0; }),
      rms_params_fault("eps 1e-5 for 1e-6 and the reverse",
                       [](RmsNormParams& p) { p.eps = p.eps == 1e-5 ? 1e-6 : 1e-5; }),
      rms_fault("eps after the root", [](NormSpec& s) { s.place = Eps::after_root; }),
      rms_fault("eps in the sum", [](NormSpec& s) { s.place = Eps::in_the_sum; }),
      rms_params_fault("1 + w for w and the reverse",
                       [](RmsNormParams& p) { p.weight_offset = 1 - p.weight_offset; }),
      rms_weight_fault("weight ignored",
                       [](Values& v, double offset) { v.assign(v.size(), 1 - offset); }),
      rms_weight_fault("weight shifted by one channel",
                       [](Values& v, double) { rotated_by_one(v); }),
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
      rms_params_fault(
          "weight and cast exchanged",
          [](RmsNormParams& p) {
            p.rounding = p.rounding == WeightRounding::before ? WeightRounding::after
                                                              : WeightRounding::before;
          },
          true),
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
      layer_fault("bias dropped", [](NormSpec& s) { s.bias = 0; }),
      layer_fault("bias added twice", [](NormSpec& s) { s.bias = 2; }),
      layer_fault("1 + w", [](NormSpec& s) { s.offset = 1; }),
      layer_fault("root missing", [](NormSpec& s) { s.squared = true; }),
      layer_fault("last term dropped", [](NormSpec& s) { s.dropped = 1; }),
      layer_fault("first row's statistics for all rows",
                  [](NormSpec& s) { s.shared_statistics = true; }),
      layer_weight_fault("weight ignored", [](Values& v) { v.assign(v.size(), 1); }),
      layer_weight_fault("weight shifted by one channel", rotated_by_one),
      layer_fault(
          "rounded before the weight", [](NormSpec& s) { s.round_normalised = true; }, true),
      layer_fault(
          "sum in the storage dtype", [](NormSpec& s) { s.storage_sums = true; }, true),
      layer_fault(
          "truncating store", [](NormSpec& s) { s.truncate = true; }, true),
  };
}

}  // namespace plumb::harness::testing
