// Fused attention on a matrix unit: the algorithm of sdpa.cpp for 32 rows at a time, whose scores
// and weights stay in the first-level cache.
//
// The weights are split into two bf16, high and low, which keep 16 bits together: nothing is
// rounded to bf16 before the output. A low half may be zero or negative, so that its product with
// an infinite value would be NaN: blocks of keys with such values are multiplied in float32.
#include "kernels/cpu/sdpa_matrix.h"

#include <cmath>

#include "kernels/cpu/matrix_gemm.h"
#include "kernels/cpu/pair_gemm.h"

namespace plumb::cpu {
namespace {

char* bytes_of(float* words) { return reinterpret_cast<char*>(words); }
uint32_t* words_of_pairs(float* words) { return reinterpret_cast<uint32_t*>(words); }

}  // namespace

// The state of one unit.
struct MatrixAttention::Block : SdpaHeads::Rows {
  float* q;             // panels of 32 rows: [steps of head_dim, 32, kStep]
  float* keys;          // strips of 32 keys: [pairs of head_dim, 32]
  float* values;        // strips of 32 columns: [pairs of keys, 32]
  float* scores;        // of a panel: [32, block keys]
  float *high, *low;    // halves of its weights: [steps of keys, 32, kStep]
  float *sums, *lines;  // [block rows, value columns]; nine rows
  float max[kBlockRows], total[kBlockRows];
};

// 32 rows of a block and those of a block's keys that some of them see.
struct MatrixAttention::Panel {
  int64_t first, rows;           // of the block
  int64_t begin, n;              // the block's keys
  int64_t seen_begin, seen_end;  // within them, whole steps
  bool finite;                   // all values are
  int64_t steps() const { return (seen_end - seen_begin) / kStep; }
};

MatrixAttention::MatrixAttention(const SdpaHeads& heads)
    : heads_(heads),
      simd_(heads.simd),
      unit_(*heads.simd.matrix),
      plain_(heads.mask_rows.only_ranges() && heads.cap == 0 && heads.scale > 0),
      dim_steps_(round_up(heads.head_dim, kStep) / kStep),
      value_strips_(round_up(heads.v_head_dim, kSide) / kSide),
      block_rows_(std::min(kBlockRows, round_up(heads.rows, kSide))),
      block_keys_(std::min(kBlockKeys, round_up(heads.keys, kSide))) {}

double MatrixAttention::cost() const {
  return 0.01 * static_cast<double>(block_rows_ * (heads_.head_dim + heads_.v_head_dim + 16)) *
         static_cast<double>(heads_.keys);
}

int64_t MatrixAttention::scratch_floats() const {
  const int64_t row_panels = block_rows_ / kSide, key_steps = block_keys_ / kStep;
  const int64_t line = std::max({pairs_of(heads_.head_dim), heads_.v_head_dim});
  return (row_panels * dim_steps_ + key_steps * dim_steps_ + key_steps * value_strips_ +
          2 * key_steps) *
             kStepFloats +
         kSide * block_keys_ + block_rows_ * value_strips_ * kSide + round_up(9 * line, kStep);
}

MatrixAttention::Block MatrixAttention::lay_out(int64_t unit, float* scratch) const {
  Block block{};
  static_cast<SdpaHeads::Rows&>(block) = heads_.block(unit, block_rows_);
  const int64_t key_steps = block_keys_ / kStep, columns = value_strips_ * kSide;
  block.q = scratch;
  block.keys = block.q + block_rows_ / kSide * dim_steps_ * kStepFloats;
  block.values = block.keys + key_steps * dim_steps_ * kStepFloats;
  block.high = block.values + key_steps * value_strips_ * kStepFloats;
  block.low = block.high + key_steps * kStepFloats;
  block.scores = block.low + key_steps * kStepFloats;
  block.sums = block.scores + kSide * block_keys_;
  block.lines = block.sums + block_rows_ * columns;
  std::fill_n(block.max, block_rows_, MaskRows::kExcluded);
  std::fill_n(block.sums, block_rows_ * columns, 0.0f);
  return block;
}

void MatrixAttention::pack_queries(const Block& block) const {
  for (int64_t i = 0; i < round_up(block.rows, kSide); ++i) {
    char* out = bytes_of(block.q + i / kSide * dim_steps_ * kStepFloats) + i % kSide * kStep * 2;
    const bool absent = i >= block.rows;
    unit_.copy_row(out, absent ? out : heads_.query_row(block, i), absent ? 0 : heads_.head_dim,
                   dim_steps_);
  }
}

void MatrixAttention::pack_keys(const Block& block, int64_t begin, int64_t n) const {
  const int64_t pairs = pairs_of(heads_.head_dim), strip_floats = dim_steps_ * kStepFloats;
  for (int64_t s = 0; s < round_up(n, kSide); s += 8) {
    float* strip = block.keys + s / kSide * strip_floats;
    if (s % kSide == 0) std::fill(strip + pairs * kSide, strip + strip_floats, 0.0f);
    pack_pairs(simd_, strip + s % kSide, kSide, n - s, heads_.head_dim, block.lines,
               [&](int64_t i) { return heads_.key_row(block, begin + s + i); });
  }
}

// Returns whether all of them are finite.
bool MatrixAttention::pack_values(const Block& block, int64_t begin, int64_t n) const {
  bool finite = true;
  for (int64_t s = 0; s < round_up(n, kStep); s += 2) {
    const char* rows[2] = {};
    for (int64_t i = 0; i < 2 && s + i < n; ++i) {
      rows[i] = heads_.value_row(block, begin + s + i);
      finite = finite && unit_.finite(rows[i], heads_.v_head_dim);
    }
    for (int64_t strip = 0; strip < value_strips_; ++strip) {
      float* out = block.values + strip * (block_keys_ / kStep) * kStepFloats + s / 2 * kSide;
      const auto part = [&](const char* row) { return row ? row + strip * kSide * 2 : nullptr; };
      unit_.interleave(words_of_pairs(out), part(rows[0]), part(rows[1]),
                       std::min(kSide, heads_.v_head_dim - strip * kSide));
    }
  }
  return finite;
}

void MatrixAttention::multiply_keys(const Block& block, const Panel& panel) const {
  MatrixTile tile{};
  tile.steps = dim_steps_;
  tile.a = bytes_of(block.q + panel.first / kSide * dim_steps_ * kStepFloats);
  tile.a_stride = kStep * 2;
  tile.a_step = kMatrixStepBytes;
  tile.sums_stride = block_keys_;
  tile.ahead[0] = tile.ahead[1] = tile.a;
  for (int64_t s = panel.seen_begin; s < panel.seen_end; s += kSide) {
    tile.b = words_of_pairs(block.keys + s / kSide * dim_steps_ * kStepFloats);
    tile.sums = block.scores + s;
    unit_.multiply(tile);
  }
}

// Scores of a row of the panel to halves of weights exp(score - max), or to weights where some
// values are infinite; the row's earlier sums are brought to the new maximum.
void MatrixAttention::weigh(Block& block, const Panel& panel, int64_t row) const {
  const int64_t i = panel.first + row, t = heads_.query(block, i), at = panel.seen_begin;
  const auto range = heads_.mask_rows.range(t);
  const int64_t last = std::min(panel.n, panel.seen_end);
  const int64_t begin = std::clamp(range.begin - panel.begin, at, last);
  const int64_t end = std::clamp(range.end - panel.begin, begin, last);
  float* scores = block.scores + row * block_keys_ + at;
  const int64_t n = end - at;
  if (plain_) {
    std::fill_n(scores, begin - at, MaskRows::kExcluded);
  } else {
    simd_.score(scores, heads_.scale, heads_.cap, n);
    heads_.mask_rows.apply(scores, block.batch, heads_.head(block, i), t, panel.begin + at,
                           panel.begin + end);
  }
  const float factor = plain_ ? heads_.scale : 1;
  const float old = block.max[i];
  const float largest = simd_.rows[kF32].max(scores, MaskRows::kExcluded, n) * factor;
  const float max = largest > old ? largest : old;
  const float shift =
      max == MaskRows::kExcluded ? 0 : max;  // nothing allowed so far: weights exp(-inf) = 0
  if (max != old) {
    const float shrinks = std::exp(old - shift);
    float* sums = block.sums + i * value_strips_ * kSide;
    block.total[i] *= shrinks;
    simd_.rows[kF32].scale(sums, sums, shrinks, value_strips_ * kSide);
    block.max[i] = max;
  }
  if (panel.finite) {
    const int64_t offset = row * kStep * 2;
    block.total[i] += unit_.weigh(bytes_of(block.high) + offset, bytes_of(block.low) + offset,
                                  scores, factor, shift, n, panel.steps());
  } else {
    simd_.rows[kF32].scale(scores, scores, factor, n);
    block.total[i] += simd_.rows[kF32].exp_sum(scores, scores, shift, n);
    std::fill(scores + n, scores + panel.seen_end - at, 0.0f);
  }
}

void MatrixAttention::multiply_values(const Block& block, const Panel& panel) const {
  const int64_t columns = value_strips_ * kSide;
  MatrixTile tile{};
  tile.steps = panel.steps();
  tile.a_stride = kStep * 2;
  tile.a_step = kMatrixStepBytes;
  tile.sums_stride = columns;
  tile.accumulate = true;
  for (int64_t strip = 0; strip < value_strips_; ++strip) {
    tile.b = words_of_pairs(block.values +
                            (strip * block_keys_ + panel.seen_begin) / kStep * kStepFloats);
    tile.sums = block.sums + panel.first * columns + strip * kSide;
    for (float* half : {block.high, block.low}) {
      tile.a = bytes_of(half);
      tile.ahead[0] = tile.ahead[1] = tile.a;
      unit_.multiply(tile);
    }
  }
}

void MatrixAttention::multiply_infinite_values(const Block& block, const Panel& panel) const {
  const int64_t columns = value_strips_ * kSide;
  float* value = block.lines;
  for (int64_t s = panel.seen_begin; s < std::min(panel.n, panel.seen_end); ++s) {
    heads_.storage.widen(value, heads_.value_row(block, panel.begin + s), heads_.v_head_dim);
    for (int64_t row = 0; row < panel.rows; ++row) {
      const float weight = block.scores[row * block_keys_ + s];
      float* sums = block.sums + (panel.first + row) * columns;
      for (int64_t d = 0; d < heads_.v_head_dim; ++d) sums[d] += weight * value[d];
    }
  }
}

void MatrixAttention::add_keys(Block& block, int64_t begin, int64_t n) const {
  pack_keys(block, begin, n);
  const bool finite = pack_values(block, begin, n);
  for (int64_t first = 0; first < block.rows; first += kSide) {
    const int64_t rows = std::min(kSide, block.rows - first);
    const auto seen = heads_.keys_seen({block.batch, block.kv_head, block.first + first, rows});
    const int64_t from = std::max(seen.begin - begin, int64_t{0}) / kStep * kStep;
    const int64_t to = round_up(std::clamp(seen.end - begin, int64_t{0}, n), kStep);
    if (from >= to) continue;
    const Panel panel{first, rows, begin, n, from, to, finite};
    multiply_keys(block, panel);
    for (int64_t row = 0; row < rows; ++row) weigh(block, panel, row);
    if (finite) multiply_values(block, panel);
    else multiply_infinite_values(block, panel);
  }
}

void MatrixAttention::compute(int64_t unit, float* scratch) const {
  const MatrixUse use(unit_);
  Block block = lay_out(unit, scratch);
  const auto [begin, end] = heads_.keys_seen(block);
  pack_queries(block);
  for (int64_t s = begin / block_keys_ * block_keys_; s < end; s += block_keys_) {
    add_keys(block, s, std::min(block_keys_, heads_.keys - s));
  }
  heads_.finish(block, block.total, block.sums, value_strips_ * kSide, block.lines,
                block.lines + heads_.v_head_dim);
}

}  // namespace plumb::cpu
