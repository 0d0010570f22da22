// Gradients of attention without a T x S matrix (Dao 2023, FlashAttention-2, algorithm 2).
//
// With weights P = exp(score - max) / total, which are computed again from q and k, and
// delta_t = sum over e of d_out[t, e] out[t, e],
//   d_v = P^T d_out, dS = P (d_out v^T - delta) f'(q k^T), d_q = dS k, d_k = dS^T q,
// f being the scale and the softcap. Two passes over blocks of queries and keys: a unit of the
// first is a block of queries, which finds maxima, totals and deltas and then makes d_q; one of
// the second is a block of keys, which makes d_k and d_v from all queries of its group, one sum in
// float32. Blocks have fixed borders: results do not depend on the number of threads.
#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/sdpa_heads.h"

namespace plumb::cpu {
namespace {

constexpr int64_t kRowsAtOnce = 8 * kTileRows;  // queries of a block
constexpr int64_t kKeysAtOnce = 96;             // whole tiles, as rows and as columns
static_assert(kKeysAtOnce % kTileRows == 0 && kKeysAtOnce % kMaxTileColumns == 0);

// What the first pass finds for the second, of each query of each head.
struct QuerySums {
  float max, reciprocal_of_total, delta;
  float without_keys;  // the weight of every key, where none is allowed; else 0
};

class AttentionGradients {
 public:
  AttentionGradients(const SdpaHeads& heads, const Tensor& d_q, const Tensor& d_k,
                     const Tensor& d_v, const Tensor& d_out, const Tensor& out, const Tensor& lse,
                     QuerySums* sums)
      : heads_(heads),
        simd_(heads.simd),
        storage_(heads.storage),
        head_dim_(heads.head_dim),
        v_head_dim_(heads.v_head_dim),
        width_(round_up(head_dim_, simd_.tile_columns)),
        v_width_(round_up(v_head_dim_, simd_.tile_columns)),
        d_q_(d_q),
        d_k_(d_k),
        d_v_(d_v),
        cotangent_(storage_, d_out.transpose(1, 2)),
        result_(storage_, out.transpose(1, 2)),
        lse_(lse),
        sums_(sums) {}

  int64_t query_units() const { return heads_.blocks(kRowsAtOnce); }
  int64_t key_units() const { return heads_.batches * heads_.kv_heads * key_blocks(); }
  double query_cost() const { return cost(kRowsAtOnce, heads_.keys); }
  double key_cost() const { return cost(heads_.rows, kKeysAtOnce); }
  int64_t scratch_floats() const {
    const int64_t both = head_dim_ + v_head_dim_, wide = width_ + v_width_;
    return (kRowsAtOnce + kKeysAtOnce) * both + (kRowsAtOnce + 2 * kKeysAtOnce) * wide +
           3 * kRowsAtOnce * kKeysAtOnce + kTileRows * kKeysAtOnce +
           9 * std::max(head_dim_, v_head_dim_) + 64;
  }
  void of_queries(int64_t unit, float* scratch) const;
  void of_keys(int64_t unit, float* scratch) const;

 private:
  // A worker's memory.
  struct Work {
    float *q, *cotangent;            // panels of [head_dim, kTileRows], + 2
    float *keys, *values;            // strips of [head_dim, tile_columns]
    float *q_rows, *cotangent_rows;  // [rows, width]
    float* key_rows;                 // [keys, width]
    float *weights, *of_scores;      // [kRowsAtOnce, kKeysAtOnce]
    float *sums, *value_sums;        // of d_q, or d_k and d_v
    float *panel, *lines;            // [inner, kTileRows]; eight rows in float32, and one of zeros
  };
  using Rows = SdpaHeads::Rows;

  double cost(int64_t rows, int64_t keys) const {
    return 0.1 * static_cast<double>(rows * keys) * static_cast<double>(head_dim_ + v_head_dim_);
  }
  int64_t key_blocks() const { return (heads_.keys + kKeysAtOnce - 1) / kKeysAtOnce; }
  QuerySums* sums_of(const Rows& r) const {
    return sums_ + (r.batch * heads_.kv_heads + r.kv_head) * heads_.rows + r.first;
  }
  const char* cotangent_row(const Rows& r, int64_t row) const {
    return cotangent_.at(r.batch, heads_.head(r, row), heads_.query(r, row));
  }

  Work lay_out(float* scratch) const;
  template <class Row>
  void pack(const Work& w, float* to, int64_t block, int64_t count, int64_t padded, int64_t width,
            const Row& row) const;
  void widen_rows(float* to, int64_t count, int64_t width, int64_t padded, const auto& row) const;
  void pack_queries(const Work& w, const Rows& r) const;
  void pack_keys(const Work& w, const Rows& r, int64_t begin, int64_t n) const;
  void multiply(float* out, const float* panels, const float* strips, int64_t rows, int64_t n,
                int64_t inner) const;
  void find_sums(const Work& w, const Rows& r, MaskRows::Range seen) const;
  void weigh(const Work& w, const Rows& r, int64_t begin, int64_t n) const;
  void add_keys(float* to, int64_t width, const Work& w, const float* matrix, const float* right,
                int64_t rows, int64_t n) const;

  const SdpaHeads& heads_;
  const Simd& simd_;
  const Format& storage_;
  const int64_t head_dim_, v_head_dim_, width_, v_width_;
  const Tensor &d_q_, &d_k_, &d_v_;
  const HeadRows cotangent_, result_;
  const Tensor& lse_;
  QuerySums* const sums_;
};

AttentionGradients::Work AttentionGradients::lay_out(float* scratch) const {
  Work w{};
  const auto take = [&](int64_t floats) {
    float* const out = scratch;
    scratch += floats;
    return out;
  };
  w.keys = take(kKeysAtOnce * head_dim_);
  w.values = take(kKeysAtOnce * v_head_dim_);
  w.q_rows = take(kRowsAtOnce * width_);
  w.cotangent_rows = take(kRowsAtOnce * v_width_);
  w.key_rows = take(kKeysAtOnce * width_);
  w.weights = take(kRowsAtOnce * kKeysAtOnce);
  w.of_scores = take(kRowsAtOnce * kKeysAtOnce);
  w.sums = take(kKeysAtOnce * width_);
  w.value_sums = take(kKeysAtOnce * v_width_);
  w.lines = take(9 * std::max(head_dim_, v_head_dim_));
  w.q = take(kRowsAtOnce * head_dim_ + 8);
  w.cotangent = take(kRowsAtOnce * v_head_dim_ + 8);
  w.panel = take(kTileRows * kKeysAtOnce + 8);
  return w;
}

// Rows in blocks of [width, block], from 8 of them at a time; absent ones are zero.
template <class Row>
void AttentionGradients::pack(const Work& w, float* to, int64_t block, int64_t count,
                              int64_t padded, int64_t width, const Row& row) const {
  float* zero = w.lines + 8 * width;
  std::fill_n(zero, width, 0.0f);
  const int64_t at_once = std::min<int64_t>(block, 8);
  for (int64_t first = 0; first < padded; first += at_once) {
    const float* rows[8];
    for (int64_t i = 0; i < 8; ++i) {
      const bool absent = i >= at_once || first + i >= count;
      rows[i] = absent ? zero : storage_.read(row(first + i), w.lines + i * width, width);
    }
    simd_.transpose8(to + first / block * block * width + first % block, block, rows, width);
  }
}

void AttentionGradients::widen_rows(float* to, int64_t count, int64_t width, int64_t padded,
                                    const auto& row) const {
  for (int64_t i = 0; i < count; ++i, to += padded) {
    storage_.widen(to, row(i), width);
    std::fill(to + width, to + padded, 0.0f);
  }
}

void AttentionGradients::pack_queries(const Work& w, const Rows& r) const {
  const int64_t padded = round_up(r.rows, kTileRows);
  pack(w, w.q, kTileRows, r.rows, padded, head_dim_,
       [&](int64_t i) { return heads_.query_row(r, i); });
  pack(w, w.cotangent, kTileRows, r.rows, padded, v_head_dim_,
       [&](int64_t i) { return cotangent_row(r, i); });
}

void AttentionGradients::pack_keys(const Work& w, const Rows& r, int64_t begin, int64_t n) const {
  const int64_t columns = simd_.tile_columns, padded = round_up(n, columns);
  pack(w, w.keys, columns, n, padded, head_dim_,
       [&](int64_t s) { return heads_.key_row(r, begin + s); });
  pack(w, w.values, columns, n, padded, v_head_dim_,
       [&](int64_t s) { return heads_.value_row(r, begin + s); });
}

// out [rows, kKeysAtOnce] = panels strips^T.
void AttentionGradients::multiply(float* out, const float* panels, const float* strips,
                                  int64_t rows, int64_t n, int64_t inner) const {
  const int64_t columns = simd_.tile_columns;
  for (int64_t row = 0; row < rows; row += kTileRows) {
    for (int64_t s = 0; s < n; s += columns) {
      simd_.tile(inner, panels + row * inner, strips + s * inner, columns,
                 out + row * kKeysAtOnce + s, kKeysAtOnce, false);
    }
  }
}

void AttentionGradients::find_sums(const Work& w, const Rows& r, MaskRows::Range seen) const {
  QuerySums* const sums = sums_of(r);
  float total[kRowsAtOnce] = {};
  for (int64_t row = 0; row < r.rows; ++row) sums[row].max = MaskRows::kExcluded;
  for (int64_t begin = seen.begin / kKeysAtOnce * kKeysAtOnce; !lse_.defined() && begin < seen.end;
       begin += kKeysAtOnce) {
    const int64_t n = std::min(kKeysAtOnce, heads_.keys - begin);
    pack(w, w.keys, simd_.tile_columns, n, round_up(n, simd_.tile_columns), head_dim_,
         [&](int64_t s) { return heads_.key_row(r, begin + s); });
    multiply(w.weights, w.q, w.keys, r.rows, n, head_dim_);
    for (int64_t row = 0; row < r.rows; ++row) {
      float* scores = w.weights + row * kKeysAtOnce;
      simd_.score(scores, heads_.scale, heads_.cap, n);
      heads_.mask_rows.apply(scores, r.batch, heads_.head(r, row), heads_.query(r, row), begin,
                             begin + n);
      const float old = sums[row].max, max = simd_.floats().max(scores, old, n);
      const float shift = max == MaskRows::kExcluded ? 0 : max;
      const float added = simd_.floats().exp_sum(scores, scores, shift, n);
      total[row] = (max == old ? total[row] : total[row] * std::exp(old - shift)) + added;
      sums[row].max = max;
    }
  }
  for (int64_t row = 0; row < r.rows; ++row) {
    const int64_t h = heads_.head(r, row), t = heads_.query(r, row);
    const float* given = storage_.read(cotangent_row(r, row), w.lines, v_head_dim_);
    const float* result =
        storage_.read(result_.at(r.batch, h, t), w.lines + v_head_dim_, v_head_dim_);
    sums[row].delta = simd_.dot(given, result, v_head_dim_);
    sums[row].without_keys = 0;
    if (heads_.mask_rows.any_allowed(r.batch, h, t)) {
      sums[row].reciprocal_of_total = lse_.defined() ? 1 : 1 / total[row];
      if (lse_.defined()) {
        sums[row].max = lse_.data<float>()[r.batch * lse_.stride(0) + h * lse_.stride(1) + t];
      }
      continue;
    }
    sums[row].max = sums[row].reciprocal_of_total = 0;
    const bool uniform = heads_.mask.fully_masked != FullyMasked::zero;
    if (uniform) sums[row].without_keys = 1 / static_cast<float>(heads_.keys);
  }
}

// The weights of rows on keys [begin, begin + n), and the gradients of q k^T.
void AttentionGradients::weigh(const Work& w, const Rows& r, int64_t begin, int64_t n) const {
  multiply(w.weights, w.q, w.keys, r.rows, n, head_dim_);
  multiply(w.of_scores, w.cotangent, w.values, r.rows, n, v_head_dim_);
  const float per_cap = heads_.cap > 0 ? 1 / heads_.cap : 0;
  for (int64_t row = 0; row < r.rows; ++row) {
    const QuerySums sums = sums_of(r)[row];
    float* const weights = w.weights + row * kKeysAtOnce;
    float* const gradients = w.of_scores + row * kKeysAtOnce;
    simd_.score(weights, heads_.scale, heads_.cap, n);
    for (int64_t s = 0; s < n; ++s) {
      const float tanh = weights[s] * per_cap;  // 0 without a cap
      gradients[s] = (gradients[s] - sums.delta) * (heads_.scale * (1 - tanh * tanh));
    }
    heads_.mask_rows.apply(weights, r.batch, heads_.head(r, row), heads_.query(r, row), begin,
                           begin + n);
    for (int64_t s = 0; s < n; ++s) {
      if (weights[s] == MaskRows::kExcluded) gradients[s] = 0;
    }
    simd_.floats().exp_sum(weights, weights, sums.max, n);
    for (int64_t s = 0; s < n; ++s) {
      weights[s] *= sums.reciprocal_of_total;
      gradients[s] *= weights[s];
    }
    if (sums.without_keys > 0) std::fill_n(weights, n, sums.without_keys);
  }
}

void AttentionGradients::of_queries(int64_t unit, float* scratch) const {
  const Work w = lay_out(scratch);
  const Rows r = heads_.block(unit, kRowsAtOnce);
  const MaskRows::Range seen = heads_.keys_seen(r);
  pack_queries(w, r);
  find_sums(w, r, seen);
  std::fill_n(w.sums, kRowsAtOnce * width_, 0.0f);
  for (int64_t begin = seen.begin / kKeysAtOnce * kKeysAtOnce; begin < seen.end;
       begin += kKeysAtOnce) {
    const int64_t n = std::min(kKeysAtOnce, heads_.keys - begin);
    pack_keys(w, r, begin, n);
    widen_rows(w.key_rows, n, head_dim_, width_,
               [&](int64_t s) { return heads_.key_row(r, begin + s); });
    weigh(w, r, begin, n);
    for (int64_t first = 0; first < r.rows; first += kTileRows) {
      const float* rows[8];
      for (int64_t i = 0; i < 8; ++i) {
        const int64_t row = i < kTileRows && first + i < r.rows ? first + i : first;
        rows[i] = w.of_scores + row * kKeysAtOnce;  // sums of absent rows are not used
      }
      simd_.transpose8(w.panel, kTileRows, rows, n);
      for (int64_t d = 0; d < width_; d += simd_.tile_columns) {
        simd_.tile(n, w.panel, w.key_rows + d, width_, w.sums + first * width_ + d, width_, true);
      }
    }
  }
  for (int64_t row = 0; row < r.rows; ++row) {
    char* to = storage_.at(static_cast<char*>(d_q_.raw()),
                           r.batch * d_q_.stride(0) + heads_.head(r, row) * d_q_.stride(1) +
                               heads_.query(r, row) * d_q_.stride(2));
    storage_.write(to, w.sums + row * width_, head_dim_);
  }
}

// to [keys, width] += matrix^T right, matrix being [rows, kKeysAtOnce].
void AttentionGradients::add_keys(float* to, int64_t width, const Work& w, const float* matrix,
                                  const float* right, int64_t rows, int64_t n) const {
  for (int64_t s = 0; s < n; s += kTileRows) {
    for (int64_t row = 0; row < rows; ++row) {
      std::copy_n(matrix + row * kKeysAtOnce + s, kTileRows, w.panel + row * kTileRows);
    }
    for (int64_t d = 0; d < width; d += simd_.tile_columns) {
      simd_.tile(rows, w.panel, right + d, width, to + s * width + d, width, true);
    }
  }
}

void AttentionGradients::of_keys(int64_t unit, float* scratch) const {
  const Work w = lay_out(scratch);
  const int64_t head = unit / key_blocks(), begin = unit % key_blocks() * kKeysAtOnce;
  const int64_t n = std::min(kKeysAtOnce, heads_.keys - begin);
  Rows r{head / heads_.kv_heads, head % heads_.kv_heads, 0, 0};
  pack_keys(w, r, begin, n);
  std::fill_n(w.sums, kKeysAtOnce * width_, 0.0f);
  std::fill_n(w.value_sums, kKeysAtOnce * v_width_, 0.0f);
  std::fill_n(w.weights, kRowsAtOnce * kKeysAtOnce, 0.0f);
  std::fill_n(w.of_scores, kRowsAtOnce * kKeysAtOnce, 0.0f);
  for (; r.first < heads_.rows; r.first += kRowsAtOnce) {
    r.rows = std::min(kRowsAtOnce, heads_.rows - r.first);
    const MaskRows::Range seen = heads_.keys_seen(r);
    const bool hidden = seen.begin >= begin + n || seen.end <= begin;
    if (hidden && std::all_of(sums_of(r), sums_of(r) + r.rows,
                              [](const QuerySums& it) { return it.without_keys == 0; })) {
      continue;
    }
    pack_queries(w, r);
    widen_rows(w.q_rows, r.rows, head_dim_, width_,
               [&](int64_t i) { return heads_.query_row(r, i); });
    widen_rows(w.cotangent_rows, r.rows, v_head_dim_, v_width_,
               [&](int64_t i) { return cotangent_row(r, i); });
    weigh(w, r, begin, n);
    add_keys(w.sums, width_, w, w.of_scores, w.q_rows, r.rows, n);
    add_keys(w.value_sums, v_width_, w, w.weights, w.cotangent_rows, r.rows, n);
  }
  const auto write = [&](const Tensor& to, const float* sums, int64_t padded, int64_t width) {
    for (int64_t s = 0; s < n; ++s) {
      char* row = storage_.at(
          static_cast<char*>(to.raw()),
          r.batch * to.stride(0) + r.kv_head * to.stride(1) + (begin + s) * to.stride(2));
      storage_.write(row, sums + s * padded, width);
    }
  };
  write(d_k_, w.sums, width_, head_dim_);
  write(d_v_, w.value_sums, v_width_, v_head_dim_);
}

}  // namespace

void CpuOps::do_sdpa_backward(const Tensor& d_q, const Tensor& d_k, const Tensor& d_v,
                              const Tensor& d_out, const Tensor& q, const Tensor& k,
                              const Tensor& v, const Tensor& out, const Tensor& lse,
                              const AttentionMask& mask, const SdpaParams& params) {
  const Format storage = format("sdpa_backward", q);
  const SdpaHeads heads(*simd_, storage, out, q, k, v, mask, params);
  Arena::Scope scope(arena());
  const int64_t queries = q.dim(0) * q.dim(1) * q.dim(2);
  auto* sums = static_cast<QuerySums*>(arena().take(DType::f32, {queries, int64_t{4}}).raw());
  const AttentionGradients gradients(heads, d_q, d_k, d_v, d_out, out, lse, sums);
  const int64_t floats = gradients.scratch_floats();
  float* scratch = arena().take(DType::f32, {pool_.size(), floats}).data<float>();
  pool_.for_each(gradients.query_units(), gradients.query_cost(), [&](int64_t unit, int worker) {
    gradients.of_queries(unit, scratch + worker * floats);
  });
  pool_.for_each(gradients.key_units(), gradients.key_cost(), [&](int64_t unit, int worker) {
    gradients.of_keys(unit, scratch + worker * floats);
  });
}

}  // namespace plumb::cpu
