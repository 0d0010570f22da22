// Fused attention: softmax(mask(cap tanh(q k^T scale / cap))) v, rounded once, at the output.
//
// Online softmax (Milakov and Gimelshein 2018) over blocks of keys, as in FlashAttention (Dao et
// al. 2022): a row keeps its maximum m, the sum l of exp(score - m) and the float32 accumulator of
// exp(score - m) v, which are rescaled when m grows; T x S scores never exist. A unit of work is a
// block of rows of one key-value head: its rows are (query head, query) pairs, so that grouped
// heads share the packed keys and values. Blocks of keys lie at fixed places, which makes a row's
// result independent of threads.
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/pair_gemm.h"
#include "kernels/cpu/sdpa_mask.h"

namespace plumb::cpu {
namespace {

constexpr int64_t kBlockQueries = 16 * kTileRows;
constexpr int64_t kBlockKeys = 128;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

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

class Attention {
 public:
  Attention(const Simd& simd, const Format& storage, const Tensor& out, const Tensor& q,
            const Tensor& k, const Tensor& v, const AttentionMask& mask, const SdpaParams& params)
      : simd_(simd),
        storage_(storage),
        out_(out),
        q_(storage, q),
        k_(storage, k),
        v_(storage, v),
        kv_heads_(k.dim(1)),
        batches_(k.dim(0)),
        mask_(mask),
        mask_rows_(mask, simd, k.dim(2)),
        queries_(q.dim(2)),
        keys_(k.dim(2)),
        head_dim_(q.dim(3)),
        v_head_dim_(v.dim(3)),
        group_(q.dim(1) / k.dim(1)),
        rows_(group_ * queries_),
        scale_(static_cast<float>(params.scale)),
        cap_(static_cast<float>(params.softcap.value_or(0))),
        pairs_(PairGemm::multiplies(simd, q.dtype())),
        block_rows_(std::min(kBlockQueries, round_up(rows_, kTileRows))),
        block_keys_(std::min(kBlockKeys, round_up(keys_, simd.tile_columns))),
        padded_head_dim_(round_up(v_head_dim_, simd.tile_columns)) {}

  int64_t row_blocks() const { return (rows_ + block_rows_ - 1) / block_rows_; }
  int64_t units() const { return batches_ * kv_heads_ * row_blocks(); }
  double cost() const {
    return 0.05 * static_cast<double>(block_rows_ * (head_dim_ + v_head_dim_ + 16)) *
           static_cast<double>(keys_);
  }
  int64_t scratch_floats() const {
    return round_up(block_rows_, kPairRows) * (head_dim_ + block_keys_ + padded_head_dim_) +
           block_keys_ * (head_dim_ + padded_head_dim_) + kTileRows * block_keys_ +
           9 * std::max(head_dim_, v_head_dim_) + 16;
  }
  void compute(int64_t unit, float* scratch) const;

 private:
  // The state of one unit.
  struct Block {
    int64_t batch, kv_head, first, rows;  // rows [first, first + rows) of the group
    float *scores, *sums, *values, *q, *keys, *weights, *lines;
    float max[kBlockQueries], total[kBlockQueries];
  };
  int64_t head(const Block& block, int64_t row) const {
    return block.kv_head * group_ + (block.first + row) / queries_;
  }
  int64_t query(const Block& block, int64_t row) const { return (block.first + row) % queries_; }
  const char* query_row(const Block& block, int64_t row) const {
    return q_.at(block.batch, head(block, row), query(block, row));
  }
  const char* key_row(const HeadRows& rows, const Block& block, int64_t s) const {
    return rows.at(block.batch, block.kv_head, s);
  }

  Block lay_out(int64_t unit, float* scratch) const;
  void pack_queries(Block&) const;
  void pack_keys(Block&, int64_t begin, int64_t n) const;
  void pack_values(Block&, int64_t begin, int64_t n) const;
  void multiply_pairs(Block&, int64_t n) const;
  void add_keys(Block&, int64_t begin, int64_t n) const;
  void weigh(Block&, int64_t row, int64_t begin, int64_t n) const;
  void finish(Block&) const;
  void mean_of_values(Block&, float* mean) const;

  const Simd& simd_;
  const Format& storage_;
  const Tensor& out_;
  const HeadRows q_, k_, v_;
  const int64_t kv_heads_, batches_;
  const AttentionMask& mask_;
  const MaskRows mask_rows_;
  const int64_t queries_, keys_, head_dim_, v_head_dim_, group_, rows_;
  const float scale_, cap_;  // cap 0: none
  const bool pairs_;         // scores are products of bf16 pairs, whose panels have kPairRows rows
  const int64_t block_rows_, block_keys_, padded_head_dim_;
};

Attention::Block Attention::lay_out(int64_t unit, float* scratch) const {
  Block block;
  const int64_t head_unit = unit / row_blocks();
  block.batch = head_unit / kv_heads_;
  block.kv_head = head_unit % kv_heads_;
  block.first = unit % row_blocks() * block_rows_;
  block.rows = std::min(block_rows_, rows_ - block.first);
  block.scores = scratch;  // [rows, keys]
  const int64_t score_rows = round_up(block_rows_, kPairRows);
  block.sums = block.scores + score_rows * block_keys_;        // [rows, padded head_dim]
  block.values = block.sums + block_rows_ * padded_head_dim_;  // [keys, padded head_dim]
  block.keys = block.values + block_keys_ * padded_head_dim_;  // strips of [head_dim, tile_columns]
  block.lines = block.keys + block_keys_ * head_dim_;  // eight rows in float32 and a row of zeros
  block.q =
      block.lines + 9 * std::max(head_dim_, v_head_dim_);  // panels of [head_dim, kTileRows], + 2
  block.weights = block.q + score_rows * head_dim_ + 8;    // a panel of [keys, kTileRows], + 2
  std::fill_n(block.max, block_rows_, -kInfinity);
  std::fill_n(block.total, block_rows_, 0.0f);
  std::fill_n(block.sums, block_rows_ * padded_head_dim_, 0.0f);
  return block;
}

void Attention::pack_queries(Block& block) const {
  if (pairs_) {
    for (int64_t first = 0; first < block.rows; first += kPairRows) {
      pack_pairs(simd_, block.q + first * pairs_of(head_dim_), kPairRows, block.rows - first,
                 head_dim_, block.lines, [&](int64_t i) { return query_row(block, first + i); });
    }
    return;
  }
  float* zero = block.lines + 8 * head_dim_;
  std::fill_n(zero, head_dim_, 0.0f);
  for (int64_t first = 0; first < block.rows; first += kTileRows) {
    const float* rows[8];
    for (int64_t i = 0; i < 8; ++i) {
      rows[i] = zero;
      if (i >= kTileRows || first + i >= block.rows) continue;
      rows[i] = storage_.read(query_row(block, first + i), block.lines + i * head_dim_, head_dim_);
    }
    simd_.transpose8(block.q + first * head_dim_, kTileRows, rows, head_dim_);
  }
}

// Keys in strips for the micro-kernel; absent ones are zero.
void Attention::pack_keys(Block& block, int64_t begin, int64_t n) const {
  const int64_t columns = simd_.tile_columns;
  const auto row = [&](int64_t s) { return key_row(k_, block, begin + s); };
  float* zero = block.lines + 8 * head_dim_;
  std::fill_n(zero, head_dim_, 0.0f);
  for (int64_t s = 0; s < round_up(n, columns); s += 8) {
    float* strip = block.keys + s / columns * columns * head_dim_ + s % columns;
    if (pairs_) {
      pack_pairs(simd_, strip, columns, n - s, head_dim_, block.lines,
                 [&](int64_t i) { return row(s + i); });
      continue;
    }
    const float* rows[8];
    for (int64_t i = 0; i < 8; ++i) {
      rows[i] =
          s + i < n ? storage_.read(row(s + i), block.lines + i * head_dim_, head_dim_) : zero;
    }
    simd_.transpose8(strip, columns, rows, head_dim_);
  }
}

void Attention::pack_values(Block& block, int64_t begin, int64_t n) const {
  for (int64_t s = 0; s < n; ++s) {
    float* row = block.values + s * padded_head_dim_;
    storage_.widen(row, key_row(v_, block, begin + s), v_head_dim_);
    std::fill(row + v_head_dim_, row + padded_head_dim_, 0.0f);
  }
}

// Scores of all rows of the block.
void Attention::multiply_pairs(Block& block, int64_t n) const {
  const int64_t columns = simd_.tile_columns, pairs = pairs_of(head_dim_);
  for (int64_t s = 0; s < n; s += columns) {
    for (int64_t row = 0; row < block.rows; row += kPairRows) {
      simd_.pair_tile({pairs, reinterpret_cast<const uint32_t*>(block.q + row * pairs),
                       reinterpret_cast<const uint32_t*>(block.keys + s * head_dim_),
                       block.scores + row * block_keys_ + s, block_keys_, false, nullptr, 0,
                       kPairRows, columns});
    }
  }
}

// Scores of one row to weights exp(score - max); the row's earlier sums are brought to the new
// maximum.
void Attention::weigh(Block& block, int64_t row, int64_t begin, int64_t n) const {
  float* scores = block.scores + row * block_keys_;
  simd_.score(scores, scale_, cap_, n);
  mask_rows_.apply(scores, block.batch, head(block, row), query(block, row), begin, begin + n);
  const float old = block.max[row];
  const float max = simd_.rows[kF32].max(scores, old, n);
  const float shift = max == -kInfinity ? 0 : max;  // nothing allowed so far: weights exp(-inf) = 0
  const float added = simd_.rows[kF32].exp_sum(scores, scores, shift, n);
  if (max != old) {
    const float factor = std::exp(old - shift);
    block.total[row] *= factor;
    simd_.rows[kF32].scale(block.sums + row * padded_head_dim_, block.sums + row * padded_head_dim_,
                           factor, padded_head_dim_);
  }
  block.total[row] += added;
  block.max[row] = max;
}

void Attention::add_keys(Block& block, int64_t begin, int64_t n) const {
  const int64_t columns = simd_.tile_columns;
  pack_keys(block, begin, n);
  pack_values(block, begin, n);
  if (pairs_) multiply_pairs(block, n);
  for (int64_t first = 0; first < block.rows; first += kTileRows) {
    float* scores = block.scores + first * block_keys_;
    for (int64_t s = 0; s < n && !pairs_; s += columns) {
      simd_.tile(head_dim_, block.q + first * head_dim_, block.keys + s * head_dim_, columns,
                 scores + s, block_keys_, false);
    }
    const float* rows[8];
    for (int64_t i = 0; i < 8; ++i) {
      const bool absent = i >= kTileRows || first + i >= block.rows;
      rows[i] = absent ? block.scores : scores + i * block_keys_;  // its sums are not used
      if (!absent) weigh(block, first + i, begin, n);
    }
    simd_.transpose8(block.weights, kTileRows, rows, n);
    for (int64_t d = 0; d < v_head_dim_; d += columns) {
      simd_.tile(n, block.weights, block.values + d, padded_head_dim_,
                 block.sums + first * padded_head_dim_ + d, padded_head_dim_, true);
    }
  }
}

void Attention::mean_of_values(Block& block, float* mean) const {
  std::fill_n(mean, v_head_dim_, 0.0f);
  for (int64_t s = 0; s < keys_; ++s) {
    simd_.rows[kF32].add(mean, mean, storage_.read(key_row(v_, block, s), block.lines, v_head_dim_),
                         v_head_dim_);
  }
  simd_.rows[kF32].divide(mean, mean, static_cast<float>(keys_), v_head_dim_);
}

void Attention::finish(Block& block) const {
  float* mean = nullptr;
  for (int64_t row = 0; row < block.rows; ++row) {
    float* sums = block.sums + row * padded_head_dim_;
    const int64_t h = head(block, row), t = query(block, row);
    char* target =
        storage_.at(static_cast<char*>(out_.raw()),
                    block.batch * out_.stride(0) + t * out_.stride(1) + h * out_.stride(2));
    const bool empty = block.total[row] == 0;
    if (empty && mask_.fully_masked != FullyMasked::zero &&
        !mask_rows_.any_allowed(block.batch, h, t)) {
      if (!mean) mean_of_values(block, mean = block.values);
      storage_.write(target, mean, v_head_dim_);
      continue;
    }
    simd_.rows[kF32].divide(sums, sums, empty ? 1 : block.total[row], v_head_dim_);
    storage_.write(target, sums, v_head_dim_);
  }
}

void Attention::compute(int64_t unit, float* scratch) const {
  Block block = lay_out(unit, scratch);
  int64_t begin = keys_, end = 0;  // keys that some row may see
  for (int64_t row = 0; row < block.rows; ++row) {
    const MaskRows::Range range = mask_rows_.range(query(block, row));
    if (range.begin >= range.end) continue;
    begin = std::min(begin, range.begin);
    end = std::max(end, range.end);
  }
  pack_queries(block);
  for (int64_t s = begin / block_keys_ * block_keys_; s < end; s += block_keys_) {
    add_keys(block, s, std::min(block_keys_, keys_ - s));
  }
  finish(block);
}

}  // namespace

void CpuOps::do_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                     const AttentionMask& mask, const SdpaParams& params) {
  const Format storage = format("sdpa", q);
  if (out.numel() == 0) return;
  const Attention attention(*simd_, storage, out, q, k, v, mask, params);
  Arena::Scope scope(arena());
  const int64_t floats = attention.scratch_floats();
  const Tensor scratch = arena().take(DType::f32, {pool_.size(), floats});
  pool_.for_each(attention.units(), attention.cost(), [&](int64_t unit, int worker) {
    attention.compute(unit, scratch.data<float>() + worker * floats);
  });
}

}  // namespace plumb::cpu
