// Which attentions the Hopper kernel takes, and the parameters that describe them to it.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/cuda/sdpa_sm90.h"
#include "kernels/cuda/sdpa_sm90_tiling.h"
#include "kernels/cuda/tensor_map.h"

namespace plumb::cuda::sm90 {

bool is_hopper() {
  int device = 0, major = 0, minor = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
         major == 9 && minor == 0;
}

namespace {

// Fewer query tokens leave most of a tile empty; the shared kernel splits their keys.
constexpr int64_t kFewestQueries = 17;
// Slots, and differences of slots, stay within int.
constexpr int64_t kMostSlots = int64_t{1} << 28;
// Without a running maximum, exp(cap) times the number of keys must stay in float32's range.
constexpr double kLargestFixedCap = 60;

// Whether the mask is made of offsets alone and lets every query token see a key.
bool takes_mask(const AttentionMask& mask, int64_t queries, int64_t keys) {
  if (mask.key_valid.defined() || mask.explicit_mask.defined() || mask.position) return false;
  const auto near = [](int64_t slot) { return slot > -kMostSlots && slot < kMostSlots; };
  if (!near(mask.query_offset) || !near(mask.key_offset) || !near(queries) || !near(keys)) {
    return false;
  }
  const int64_t first = mask.query_offset - mask.key_offset, last = first + queries - 1;
  if (mask.causal && first < 0) return false;
  return !mask.window || *mask.window > last - (keys - 1);
}

bool takes(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask,
           const SdpaParams& params) {
  const bool narrow = q.dtype() == DType::bf16 || q.dtype() == DType::f16;
  const int64_t head_dim = q.dim(3);
  if (!narrow || (head_dim != 64 && head_dim != 128 && head_dim != 256) || v.dim(3) != head_dim)
    return false;
  if (q.dim(2) < kFewestQueries || !takes_mask(mask, q.dim(2), k.dim(2))) return false;
  if (!(params.scale > 0 && std::isfinite(static_cast<float>(params.scale)))) return false;
  if (q.dtype() == DType::bf16 && params.softcap.value_or(0) > kLargestFixedCap) return false;
  return is_hopper();
}

// Nothing when there are more tiles than an int counts.
std::optional<SdpaProblem> problem_of(const Tensor& q, const Tensor& k, const AttentionMask& mask,
                                      const SdpaParams& params) {
  const int64_t query_tiles = (q.dim(2) + kTileQueries - 1) / kTileQueries;
  int64_t tiles = 0;
  if (__builtin_mul_overflow(query_tiles, q.dim(0) * q.dim(1), &tiles) || tiles >= kMostSlots) {
    return {};
  }
  SdpaProblem p{};
  p.batch = static_cast<int>(q.dim(0));
  p.heads = static_cast<int>(q.dim(1));
  p.group = static_cast<int>(q.dim(1) / k.dim(1));
  p.queries = static_cast<int>(q.dim(2));
  p.keys = static_cast<int>(k.dim(2));
  p.shift = static_cast<int>(mask.query_offset - mask.key_offset);
  p.window = static_cast<int>(std::min(mask.window.value_or(0), 4 * kMostSlots));
  p.causal = mask.causal;
  p.query_tiles = static_cast<int>(query_tiles);
  p.tiles = static_cast<int>(tiles);
  p.scale_log2 = static_cast<float>(params.scale * std::numbers::log2e);
  if (params.softcap) {
    p.scale_over_cap = static_cast<float>(params.scale / *params.softcap);
    p.cap_log2 = static_cast<float>(*params.softcap * std::numbers::log2e);
  }
  return p;
}

}  // namespace

std::string_view SdpaPlan::variant() const {
  return head_dim == 64 ? "d64" : head_dim == 128 ? "d128" : "d256";
}

std::optional<SdpaPlan> plan_sdpa(const Tensor& out, const Tensor& q, const Tensor& k,
                                  const Tensor& v, const AttentionMask& mask,
                                  const SdpaParams& params) {
  if (!takes(q, k, v, mask, params)) return {};
  const std::optional<SdpaProblem> problem = problem_of(q, k, mask, params);
  const int keys = tile_keys(static_cast<int>(q.dim(3)));
  const auto q_map = make_tensor_map(q, 2, kGroupQueries), k_map = make_tensor_map(k, 2, keys);
  const auto v_map = make_tensor_map(v, 2, keys), out_map = make_tensor_map(out, 1, kGroupQueries);
  if (!problem || !q_map || !k_map || !v_map || !out_map) return {};
  return SdpaPlan{q.dtype(),
                  q.dim(3),
                  params.softcap.has_value(),
                  *problem,
                  {*q_map, *k_map, *v_map, *out_map}};
}

}  // namespace plumb::cuda::sm90
