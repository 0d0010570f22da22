#include "kernels/cpu/sdpa_heads.h"

namespace plumb::cpu {

SdpaHeads::SdpaHeads(const Simd& simd_, const Format& storage_, const Tensor& out_,
                     const Tensor& q_, const Tensor& k_, const Tensor& v_,
                     const AttentionMask& mask_, const SdpaParams& params)
    : simd(simd_),
      storage(storage_),
      out(out_),
      q(storage, q_),
      k(storage, k_),
      v(storage, v_),
      kv_heads(k_.dim(1)),
      batches(k_.dim(0)),
      mask(mask_),
      mask_rows(mask, simd, k_.dim(2)),
      queries(q_.dim(2)),
      keys(k_.dim(2)),
      head_dim(q_.dim(3)),
      v_head_dim(v_.dim(3)),
      group(q_.dim(1) / k_.dim(1)),
      rows(group * queries),
      scale(static_cast<float>(params.scale)),
      cap(static_cast<float>(params.softcap.value_or(0))) {}

SdpaHeads::Rows SdpaHeads::block(int64_t index, int64_t block_rows) const {
  const int64_t blocks = (rows + block_rows - 1) / block_rows;
  const int64_t head_unit = index / blocks, first = index % blocks * block_rows;
  return {head_unit / kv_heads, head_unit % kv_heads, first, std::min(block_rows, rows - first)};
}

MaskRows::Range SdpaHeads::keys_seen(const Rows& r) const {
  MaskRows::Range seen{keys, 0};
  for (int64_t row = 0; row < r.rows; ++row) {
    const MaskRows::Range range = mask_rows.range(query(r, row));
    if (range.begin >= range.end) continue;
    seen.begin = std::min(seen.begin, range.begin);
    seen.end = std::max(seen.end, range.end);
  }
  return seen;
}

void SdpaHeads::mean_of_values(const Rows& r, float* mean, float* line) const {
  std::fill_n(mean, v_head_dim, 0.0f);
  for (int64_t s = 0; s < keys; ++s) {
    simd.rows[kF32].add(mean, mean, storage.read(value_row(r, s), line, v_head_dim), v_head_dim);
  }
  simd.rows[kF32].divide(mean, mean, static_cast<float>(keys), v_head_dim);
}

void SdpaHeads::finish(const Rows& r, const float* totals, float* sums, int64_t stride, float* mean,
                       float* line) const {
  bool has_mean = false;
  for (int64_t row = 0; row < r.rows; ++row, sums += stride) {
    const int64_t h = head(r, row), t = query(r, row);
    char* target = storage.at(static_cast<char*>(out.raw()),
                              r.batch * out.stride(0) + t * out.stride(1) + h * out.stride(2));
    const bool empty = totals[row] == 0;
    if (empty && mask.fully_masked != FullyMasked::zero && !mask_rows.any_allowed(r.batch, h, t)) {
      if (!has_mean) mean_of_values(r, mean, line);
      has_mean = true;
      storage.write(target, mean, v_head_dim);
      continue;
    }
    simd.rows[kF32].divide(sums, sums, empty ? 1 : totals[row], v_head_dim);
    storage.write(target, sums, v_head_dim);
  }
}

}  // namespace plumb::cpu
