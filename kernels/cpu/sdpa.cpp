// Fused attention: softmax(mask(cap tanh(q k^T scale / cap))) v, rounded once, at the output.
//
// Online softmax (Milakov and Gimelshein 2018) over blocks of keys, as in FlashAttention (Dao et
// al. 2022): a row keeps its maximum m, the sum l of exp(score - m) and the float32 accumulator of
// exp(score - m) v, which are rescaled when m grows; T x S scores never exist. A unit of work is a
// block of rows of one key-value head: its rows are (query head, query) pairs, so that grouped
// heads share the packed keys and values. Blocks of keys have fixed borders, which makes a row's
// result independent of the number of threads.
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/matrix_gemm.h"
#include "kernels/cpu/pair_gemm.h"
#include "kernels/cpu/sdpa_heads.h"
#include "kernels/cpu/sdpa_matrix.h"

namespace plumb::cpu {
namespace {

constexpr int64_t kBlockQueries = 16 * kTileRows;
constexpr int64_t kBlockKeys = 128;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Attention {
 public:
  Attention(const SdpaHeads& heads, bool pairs)
      : heads_(heads),
        simd_(heads.simd),
        storage_(heads.storage),
        head_dim_(heads.head_dim),
        v_head_dim_(heads.v_head_dim),
        pairs_(pairs),
        block_rows_(std::min(kBlockQueries, round_up(heads.rows, kTileRows))),
        block_keys_(std::min(kBlockKeys, round_up(heads.keys, simd_.tile_columns))),
        padded_head_dim_(round_up(v_head_dim_, simd_.tile_columns)) {}

  int64_t units() const { return heads_.blocks(block_rows_); }
  double cost() const {
    return 0.05 * static_cast<double>(block_rows_ * (head_dim_ + v_head_dim_ + 16)) *
           static_cast<double>(heads_.keys);
  }
  int64_t scratch_floats() const {
    return round_up(block_rows_, kPairRows) * (head_dim_ + block_keys_ + padded_head_dim_) +
           block_keys_ * (head_dim_ + padded_head_dim_) + kTileRows * block_keys_ +
           9 * std::max(head_dim_, v_head_dim_) + 16;
  }
  void compute(int64_t unit, float* scratch) const;

 private:
  // The state of one unit.
  struct Block : SdpaHeads::Rows {
    float *scores, *sums, *values, *q, *keys, *weights, *lines;
    float max[kBlockQueries], total[kBlockQueries];
  };

  Block lay_out(int64_t unit, float* scratch) const;
  void pack_queries(Block&) const;
  void pack_keys(Block&, int64_t begin, int64_t n) const;
  void pack_values(Block&, int64_t begin, int64_t n) const;
  void multiply_pairs(Block&, int64_t n) const;
  void add_keys(Block&, int64_t begin, int64_t n) const;
  void weigh(Block&, int64_t row, int64_t begin, int64_t n) const;

  const SdpaHeads& heads_;
  const Simd& simd_;
  const Format& storage_;
  const int64_t head_dim_, v_head_dim_;
  const bool pairs_;  // scores are products of bf16 pairs, whose panels have kPairRows rows
  const int64_t block_rows_, block_keys_, padded_head_dim_;
};

Attention::Block Attention::lay_out(int64_t unit, float* scratch) const {
  Block block{};
  static_cast<SdpaHeads::Rows&>(block) = heads_.block(unit, block_rows_);
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
                 head_dim_, block.lines,
                 [&](int64_t i) { return heads_.query_row(block, first + i); });
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
      rows[i] =
          storage_.read(heads_.query_row(block, first + i), block.lines + i * head_dim_, head_dim_);
    }
    simd_.transpose8(block.q + first * head_dim_, kTileRows, rows, head_dim_);
  }
}

// Keys in strips for the micro-kernel; absent ones are zero.
void Attention::pack_keys(Block& block, int64_t begin, int64_t n) const {
  const int64_t columns = simd_.tile_columns;
  const auto row = [&](int64_t s) { return heads_.key_row(block, begin + s); };
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
    storage_.widen(row, heads_.value_row(block, begin + s), v_head_dim_);
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
  simd_.score(scores, heads_.scale, heads_.cap, n);
  heads_.mask_rows.apply(scores, block.batch, heads_.head(block, row), heads_.query(block, row),
                         begin, begin + n);
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

void Attention::compute(int64_t unit, float* scratch) const {
  Block block = lay_out(unit, scratch);
  const auto [begin, end] = heads_.keys_seen(block);
  pack_queries(block);
  for (int64_t s = begin / block_keys_ * block_keys_; s < end; s += block_keys_) {
    add_keys(block, s, std::min(block_keys_, heads_.keys - s));
  }
  heads_.finish(block, block.total, block.sums, padded_head_dim_, block.values, block.lines);
}

}  // namespace

void CpuOps::do_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                     const AttentionMask& mask, const SdpaParams& params) {
  const Format storage = format("sdpa", q);
  if (out.numel() == 0) return;
  const SdpaHeads heads(*simd_, storage, out, q, k, v, mask, params);
  Arena::Scope scope(arena());
  const auto run = [&](const auto& attention) {
    const int64_t floats = attention.scratch_floats();
    const Tensor scratch = arena().take(DType::f32, {pool_.size(), floats});
    pool_.for_each(attention.units(), attention.cost(), [&](int64_t unit, int worker) {
      attention.compute(unit, scratch.data<float>() + worker * floats);
    });
  };
  if (MatrixGemm::multiplies(*simd_, q.dtype())) run(MatrixAttention(heads));
  else run(Attention(heads, PairGemm::multiplies(*simd_, q.dtype())));
}

}  // namespace plumb::cpu
