// Attention on a GPU as tests call it: cases, their operands, and the float64 result.
#pragma once

#include <cmath>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/error.h"
#include "tests/kernels/support.h"

namespace plumb {

struct Case {
  int64_t queries, keys, width;
  int64_t heads = 4, kv_heads = 2;
  double softcap = 0;  // 0: none
  int64_t window = 0;  // 0: none
  bool causal = true;
  bool views = false;  // q, k and v are [B, T, H, D] in memory, k and v parts of longer ones
};

inline std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << "T " << c.queries << ", S " << c.keys << ", D " << c.width << ", heads " << c.heads
             << '/' << c.kv_heads << ", softcap " << c.softcap << ", window " << c.window
             << (c.causal ? ", causal" : "") << (c.views ? ", views" : "");
}

// The first GPU, or none: then it has said so, and the test is skipped.
inline std::unique_ptr<Device> open_gpu() {
  for (const DeviceStatus& status : list_devices()) {
    if (status.name != "cuda" && status.name != "cuda:0") continue;
    if (status.usable) return open_device(status.name);
    std::cout << "skipped: " << status.text << '\n';
  }
  return nullptr;
}

inline bool is_hopper(const Device& device) {
  return device.describe().find("compute capability 9.0") != std::string::npos;
}

inline AttentionMask mask_of(const Case& c) {
  AttentionMask mask;
  mask.causal = c.causal;
  if (c.window) mask.window = c.window;
  mask.query_offset = c.keys - c.queries;
  return mask;
}

inline SdpaParams params_of(const Case& c) {
  SdpaParams params;
  params.scale = 1 / std::sqrt(static_cast<double>(c.width));
  if (c.softcap) params.softcap = c.softcap;
  return params;
}

inline constexpr int64_t kBatch = 2;

// q, k, v of a case on a device. As views, tokens come before heads, and k and v are the middle of
// longer caches, whose other slots are NaN.
struct Inputs {
  std::vector<Guarded> kept;
  Tensor q, k, v;

  Inputs(Device& device, DType dtype, const Case& c, const Values& query, const Values& key,
         const Values& value) {
    q = place(device, dtype, c.heads, c.queries, 0, c, query);
    k = place(device, dtype, c.kv_heads, c.keys, 3, c, key);
    v = place(device, dtype, c.kv_heads, c.keys, 5, c, value);
  }

 private:
  Tensor place(Device& device, DType dtype, int64_t heads, int64_t tokens, int64_t around,
               const Case& c, const Values& values) {
    if (!c.views) {
      kept.emplace_back(device, dtype, Shape{kBatch, heads, tokens, c.width});
      kept.back().set(values);
      return kept.back();
    }
    const int64_t all = tokens + 2 * around;
    kept.emplace_back(device, dtype, Shape{kBatch, all, heads, c.width});
    Values moved(static_cast<size_t>(kBatch * all * heads * c.width), std::nan(""));
    size_t from = 0;
    for (int64_t b = 0; b < kBatch; ++b) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t d = 0; d < c.width; ++d) {
            moved[static_cast<size_t>(((b * all + around + t) * heads + h) * c.width + d)] =
                values[from++];
          }
        }
      }
    }
    kept.back().set(moved);
    return kept.back().tensor().slice(1, around, around + tokens).transpose(1, 2);
  }
};

// Runs it twice (equal bits, nothing outside written); which variant ran goes to `variant`.
inline Values attend(Device& device, DType dtype, const Case& c, const Inputs& in,
                     const AttentionMask& mask, std::string* variant = nullptr) {
  Guarded out(device, dtype, {kBatch, c.queries, c.heads, c.width});
  std::vector<OpRecord> records;
  device.ops().observe(&records);
  const Values y =
      run(device, {&out}, [&] { device.ops().sdpa(out, in.q, in.k, in.v, mask, params_of(c)); })[0];
  device.ops().observe(nullptr);
  if (variant) *variant = text(records.at(0).impl.kernel, '.', records.at(0).impl.variant);
  return y;
}

inline Values attend_exactly(const Case& c, const Values& q, const Values& k, const Values& v) {
  const std::unique_ptr<Device> oracle = open_device("oracle");
  Case plain = c;
  plain.views = false;
  const Inputs in(*oracle, DType::f64, plain, q, k, v);
  Guarded out(*oracle, DType::f64, {kBatch, c.queries, c.heads, c.width});
  oracle->ops().sdpa(out, in.q, in.k, in.v, mask_of(c), params_of(c));
  return out.get();
}

// The same call with a mask that lists every pair: not a case for the faster versions.
inline Values attend_shared(Device& device, DType dtype, const Case& c, const Inputs& in) {
  Guarded listed(device, DType::boolean, {1, 1, c.queries, c.keys});
  Values allowed;
  for (int64_t t = 0; t < c.queries; ++t) {
    for (int64_t s = 0; s < c.keys; ++s) {
      const int64_t back = t + c.keys - c.queries - s;  // how far before the query the key is
      allowed.push_back((!c.causal || back >= 0) && (!c.window || back < c.window));
    }
  }
  listed.set(allowed);
  AttentionMask mask;
  mask.explicit_mask = listed;
  std::string variant;
  Values y = attend(device, dtype, c, in, mask, &variant);
  REQUIRE((variant.rfind("tiles", 0) == 0 || variant.rfind("split_keys", 0) == 0));
  return y;
}

inline double relative_rms(const Values& y, const Values& exact) {
  double error = 0, size = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    error += (y[i] - exact[i]) * (y[i] - exact[i]);
    size += exact[i] * exact[i];
  }
  return std::sqrt(error / size);
}

}  // namespace plumb
