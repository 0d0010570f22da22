// What all sdpa kernels share: where the rows of heads are, and how outputs are finished.
#pragma once

#include "kernels/cpu/rows.h"
#include "kernels/cpu/sdpa_mask.h"
#include "kernels/ops/ops.h"

namespace plumb::cpu {

// Rows [batch, head, position] of a tensor.
struct HeadRows {
  const char* base;
  int64_t batch, head, position;  // strides in bytes
  HeadRows(const Format& storage, const Tensor& t)
      : base(storage.at(t, 0)),
        batch(t.stride(0) * storage.size()),
        head(t.stride(1) * storage.size()),
        position(t.stride(2) * storage.size()) {}
  const char* at(int64_t b, int64_t h, int64_t p) const {
    return base + b * batch + h * head + p * position;
  }
};

// One call of sdpa. Query heads that share a key-value head are a group, whose rows are (query
// head, query) pairs.
struct SdpaHeads {
  SdpaHeads(const Simd& simd, const Format& storage, const Tensor& out, const Tensor& q,
            const Tensor& k, const Tensor& v, const AttentionMask& mask, const SdpaParams& params);

  // Rows [first, first + rows) of a group.
  struct Rows {
    int64_t batch, kv_head, first, rows;
  };
  // Of the blocks of block_rows that each group is cut into.
  int64_t blocks(int64_t block_rows) const {
    return batches * kv_heads * ((rows + block_rows - 1) / block_rows);
  }
  Rows block(int64_t index, int64_t block_rows) const;

  int64_t head(const Rows& r, int64_t row) const {
    return r.kv_head * group + (r.first + row) / queries;
  }
  int64_t query(const Rows& r, int64_t row) const { return (r.first + row) % queries; }
  const char* query_row(const Rows& r, int64_t row) const {
    return q.at(r.batch, head(r, row), query(r, row));
  }
  const char* key_row(const Rows& r, int64_t s) const { return k.at(r.batch, r.kv_head, s); }
  const char* value_row(const Rows& r, int64_t s) const { return v.at(r.batch, r.kv_head, s); }

  // The keys that some of the rows may see, those of padding and explicit masks included.
  MaskRows::Range keys_seen(const Rows& r) const;
  // Outputs of the rows from their sums, rows of `stride`, and the totals of their weights. `mean`
  // and `line` have room for a row of values.
  void finish(const Rows& r, const float* totals, float* sums, int64_t stride, float* mean,
              float* line) const;

  const Simd& simd;
  const Format& storage;
  const Tensor& out;
  const HeadRows q, k, v;
  const int64_t kv_heads, batches;
  const AttentionMask& mask;
  const MaskRows mask_rows;
  const int64_t queries, keys, head_dim, v_head_dim, group, rows;
  const float scale, cap;  // cap 0: none

 private:
  void mean_of_values(const Rows& r, float* mean, float* line) const;
};

}  // namespace plumb::cpu
