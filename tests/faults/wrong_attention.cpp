// Attention and its mask, with one thing to get wrong.
#include <cmath>
#include <limits>

#include "kernels/core/device.h"
#include "tests/faults/wrong_ops.h"

namespace plumb::harness::testing {
namespace {

constexpr double kLowest = std::numeric_limits<double>::lowest();

// Additions to the scores, [B, H, T, S]; kLowest where a key is not allowed.
Values additions(Ops& ops, const AttentionMask& mask, const Shape& scores) {
  Tensor t = mask.explicit_mask;
  if (!t.defined()) {
    t = fresh(ops, DType::boolean,
              {mask.key_valid.defined() ? scores[0] : 1, 1, scores[2], scores[3]});
    ops.causal_mask(t, mask);
  }
  Values out;
  const double lowest = is_floating(t.dtype()) ? -info(t.dtype()).max : 0;
  for (int64_t b = 0; b < scores[0]; ++b) {
    for (int64_t h = 0; h < scores[1]; ++h) {
      const int64_t row = t.dim(0) == 1 ? 0 : b, head = t.dim(1) == 1 ? 0 : h;
      for (double value : values_of(t.slice(0, row, row + 1).slice(1, head, head + 1))) {
        if (t.dtype() == DType::boolean) value = value != 0 ? 0 : kLowest;
        else if (value <= lowest) value = kLowest;
        out.push_back(value);
      }
    }
  }
  return out;
}

class Row {
 public:
  Row(const SdpaParams& params, const AttentionSpec& spec, FullyMasked fully_masked)
      : params_(params), spec_(spec), fully_masked_(fully_masked) {}

  // One query: dot products with the keys, additions, values [S, D] -> out [D].
  void attend(const Values& dots, const double* added, const double* values, size_t width,
              double* out) const {
    using Cap = AttentionSpec::Cap;
    Values scores(dots.size());
    bool any = false;
    for (size_t s = 0; s < dots.size(); ++s) {
      double score = spec_.cap == Cap::before_scale ? capped(dots[s]) * params_.scale
                                                    : dots[s] * params_.scale;
      if (spec_.cap == Cap::right || spec_.cap == Cap::no_rescale) score = capped(score);
      score = added[s] == kLowest ? kLowest : score + added[s];
      any = any || added[s] != kLowest;
      if (spec_.cap == Cap::after_mask) score = capped(score);
      scores[s] = score;
    }
    if (!any && spec_.nan_without_keys) {
      std::fill_n(out, width, std::numeric_limits<double>::quiet_NaN());
    } else if (any || fully_masked_ == FullyMasked::uniform) {
      weigh(scores, values, width, out);
    }
  }

 private:
  double capped(double score) const {
    if (!params_.softcap) return score;
    const double factor = spec_.cap == AttentionSpec::Cap::no_rescale ? 1 : *params_.softcap;
    return std::tanh(score / *params_.softcap) * factor;
  }

  void weigh(const Values& scores, const double* values, size_t width, double* out) const {
    double largest = kLowest, total = 0;
    const size_t n = scores.size();
    const auto block = static_cast<size_t>(spec_.block_without_rescale);
    if (!block) {
      for (double score : scores) largest = std::fmax(largest, score);
    }
    for (size_t s = 0; s < n; ++s) {
      if (block && s % block == 0) {
        for (size_t i = s; i < std::min(n, s + block); ++i) largest = std::fmax(largest, scores[i]);
      }
      const double p = std::exp(scores[s] - largest);
      if (s + static_cast<size_t>(spec_.uncounted) < n) total += p;
      for (size_t d = 0; d < width; ++d) out[d] += p * values[s * width + d];
    }
    for (size_t d = 0; d < width && spec_.normalise; ++d) out[d] /= total;
  }

  const SdpaParams& params_;
  const AttentionSpec& spec_;
  const FullyMasked fully_masked_;
};

}  // namespace

void wrong_sdpa(Ops& ops, const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                const AttentionMask& mask, const SdpaParams& params, const AttentionSpec& spec) {
  const int64_t heads = q.dim(1), kv_heads = k.dim(1);
  const auto queries = static_cast<size_t>(q.dim(2)), keys = static_cast<size_t>(k.dim(2));
  const auto width = static_cast<size_t>(q.dim(3)), value_width = static_cast<size_t>(v.dim(3));
  const Values added = additions(ops, mask, {q.dim(0), heads, q.dim(2), k.dim(2)});
  const auto head_of = [](const Tensor& t, int64_t b, int64_t h) {
    return values_of(t.slice(0, b, b + 1).slice(1, h, h + 1));
  };
  const Row row(params, spec, mask.fully_masked);
  for (int64_t b = 0; b < q.dim(0); ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t kv = spec.tiled_heads ? h % kv_heads : h / (heads / kv_heads);
      const Values qs = head_of(q, b, h), ks = head_of(k, b, kv), vs = head_of(v, b, kv);
      Values result(queries * value_width, 0.0), dots(keys);
      for (size_t t = 0; t < queries; ++t) {
        for (size_t s = 0; s < keys; ++s) {
          dots[s] = 0;
          for (size_t d = 0; d < width; ++d) dots[s] += qs[t * width + d] * ks[s * width + d];
        }
        const size_t at = (static_cast<size_t>(b * heads + h) * queries + t) * keys;
        row.attend(dots, added.data() + at, vs.data(), value_width,
                   result.data() + t * value_width);
      }
      put(out.slice(0, b, b + 1).slice(2, h, h + 1), result);
    }
  }
}

Tensor mask_by(Ops& ops, const AttentionMask& mask, int64_t queries, int64_t keys,
               const Allowed& allowed) {
  const int64_t batch = mask.key_valid.defined() ? mask.key_valid.dim(0) : 1;
  const Tensor out = fresh(ops, DType::boolean, {batch, 1, queries, keys});
  char* at = out.data<char>();
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t t = 0; t < queries; ++t) {
      for (int64_t s = 0; s < keys; ++s) *at++ = allowed(mask, b, t, s);
    }
  }
  return out;
}

}  // namespace plumb::harness::testing
