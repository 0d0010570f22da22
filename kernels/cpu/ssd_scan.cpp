// The Mamba2 scan of a sequence in chunks (Dao and Gu 2024, section 6).
//
// x [B, T, H, P], b, c [B, T, G, N], state [B, H, P, N]. With a_t the sum of dt A from the chunk's
// start through t, and the state S before the chunk,
//   y_t = sum over s <= t of (c_t . b_s) exp(a_t - a_s) dt_s x_s + exp(a_t) S c_t + d x_t,
//   S'  = exp(a_L) S + sum over s of exp(a_L - a_s) dt_s x_s (outer) b_s.
// The products c_t . b_s are computed first, once per group. Then one unit of work is a head, which
// walks through the chunks: y is one product [L, L + N] x [L + N, P] of those weights with the rows
// dt_s x_s and S^T, the new state another, both by the register tile of simd.h. The sums a_t are
// float64: their differences are exponents.
#include "kernels/cpu/ssd_scan.h"

#include "kernels/cpu/cpu_ops.h"

namespace plumb::cpu {
namespace {

constexpr int64_t kChunk = 60;  // a multiple of kTileRows
static_assert(kChunk % kTileRows == 0);

struct Sizes {
  int64_t tokens, heads, head_dim, columns, per_group, chunks;
  int64_t width;  // head_dim, padded to the tile
  int64_t rows;   // columns, padded to the tile
  explicit Sizes(const SsdInputs& in, int64_t tile_columns)
      : tokens(in.x.dim(1)),
        heads(in.x.dim(2)),
        head_dim(in.x.dim(3)),
        columns(in.b.dim(3)),
        per_group(heads / in.b.dim(2)),
        chunks((tokens + kChunk - 1) / kChunk),
        width(round_up(head_dim, tile_columns)),
        rows(round_up(columns, kTileRows)) {}
};

// The scratch of one worker, in floats.
struct Work {
  float* right;   // [kChunk + rows, width]: dt_s x_s, then S^T
  float* left;    // [kChunk, kChunk + columns]: what they are multiplied by
  float* packed;  // the same in panels of kTileRows
  float* sums;    // [kChunk, width]
  float* row;     // of x or of zeros, at least as long as a row of left

  static int64_t floats(const Sizes& s) {
    const int64_t depth = kChunk + s.rows;
    return (depth + kChunk + 1) * s.width + (kChunk + kTileRows + 1) * depth + 8;
  }
  Work(float* start, const Sizes& s) {
    const int64_t depth = kChunk + s.rows;
    right = start;
    sums = right + depth * s.width;
    left = sums + kChunk * s.width;
    packed = left + kChunk * depth;
    row = packed + kTileRows * depth + 8;
  }
};

class Head {
 public:
  Head(const Simd& simd, const Format& storage, const SsdInputs& in, const SsdParams& params,
       const Sizes& sizes, Work work, int64_t row, int64_t head)
      : simd_(simd),
        rows_(simd.floats()),
        storage_(storage),
        in_(in),
        params_(params),
        s_(sizes),
        work_(work),
        row_(row),
        head_(head),
        decay_(-std::exp(of_head(in.a_log, head))),
        skip_(static_cast<float>(of_head(in.d, head))),
        state_(work.right + kChunk * sizes.width) {}

  void start() {
    std::fill_n(work_.right, (kChunk + s_.rows) * s_.width, 0.0f);
    if (!in_.state.defined()) return;
    const float* from = state_of(in_.state);
    for (int64_t p = 0; p < s_.head_dim; ++p) {
      for (int64_t n = 0; n < s_.columns; ++n) {
        state_[n * s_.width + p] = from[p * in_.state.stride(2) + n];
      }
    }
  }

  // cb: c_t . b_s of this chunk, [kChunk, kChunk].
  void chunk(int64_t first, const float* cb, const Tensor& y) {
    count_ = std::min(kChunk, s_.tokens - first);
    read(first);
    weigh(first, cb);
    multiply_left();
    for (int64_t t = 0; t < count_; ++t) {
      float* sum = work_.sums + t * s_.width;
      const float* x = storage_.read(vector(in_.x, first + t, head_), work_.row, s_.head_dim);
      rows_.scale(work_.row, x, skip_, s_.head_dim);
      rows_.add(
          y.data<float>() + row_ * y.stride(0) + (first + t) * y.stride(1) + head_ * y.stride(2),
          sum, work_.row, s_.head_dim);
    }
    advance(first);
  }

  void finish(const Tensor& after) const {
    float* to = state_of(after);
    for (int64_t p = 0; p < s_.head_dim; ++p) {
      for (int64_t n = 0; n < s_.columns; ++n) {
        to[p * after.stride(2) + n] = state_[n * s_.width + p];
      }
    }
  }

 private:
  const char* vector(const Tensor& t, int64_t token, int64_t index) const {
    return storage_.at(t, row_ * t.stride(0) + token * t.stride(1) + index * t.stride(2));
  }
  float* state_of(const Tensor& t) const {
    return t.data<float>() + row_ * t.stride(0) + head_ * t.stride(1);
  }

  // Time steps, their sums, and the rows dt_s x_s; zeros past the sequence's end.
  void read(int64_t first) {
    double sum = 0;
    for (int64_t t = 0; t < kChunk; ++t) {
      float* x = work_.right + t * s_.width;
      if (t >= count_) {
        std::fill_n(x, s_.head_dim, 0.0f);
        continue;
      }
      const double dt = time_step(in_, params_, row_, first + t, head_);
      sum += dt * decay_;
      sums_[t] = sum;
      storage_.widen(x, vector(in_.x, first + t, head_), s_.head_dim);
      rows_.scale(x, x, static_cast<float>(dt), s_.head_dim);
    }
  }

  // left[t] = (c_t . b_s) exp(a_t - a_s) for s <= t, 0 after, then exp(a_t) c_t.
  void weigh(int64_t first, const float* cb) {
    const int64_t depth = kChunk + s_.columns;
    std::fill_n(work_.left, kChunk * depth, 0.0f);
    for (int64_t t = 0; t < count_; ++t) {
      float* left = work_.left + t * depth;
      for (int64_t s = 0; s <= t; ++s) left[s] = static_cast<float>(sums_[t] - sums_[s]);
      rows_.exp_sum(left, left, 0, t + 1);
      rows_.mul(left, left, cb + t * kChunk, t + 1);
      const char* c = vector(in_.c, first + t, head_ / s_.per_group);
      rows_.scale(left + kChunk, storage_.read(c, left + kChunk, s_.columns),
                  static_cast<float>(std::exp(sums_[t])), s_.columns);
    }
  }

  // sums = left right.
  void multiply_left() {
    const int64_t depth = kChunk + s_.columns;
    std::fill_n(work_.row, depth, 0.0f);
    for (int64_t t = 0; t < count_; t += kTileRows) {
      const float* rows[8];
      for (int i = 0; i < 8; ++i) {
        rows[i] = i < kTileRows ? work_.left + (t + i) * depth : work_.row;
      }
      simd_.transpose8(work_.packed, kTileRows, rows, depth);
      for (int64_t j = 0; j < s_.width; j += simd_.tile_columns) {
        simd_.tile(depth, work_.packed, work_.right + j, s_.width, work_.sums + t * s_.width + j,
                   s_.width, false);
      }
    }
  }

  // S^T = exp(a_L) S^T + sum over s of exp(a_L - a_s) b_s (outer) dt_s x_s.
  void advance(int64_t first) {
    const double last = sums_[count_ - 1];
    rows_.scale(state_, state_, static_cast<float>(std::exp(last)), s_.rows * s_.width);
    float* scaled = work_.left;  // [count, rows]
    for (int64_t s = 0; s < count_; ++s) {
      float* b = scaled + s * s_.rows;
      const char* from = vector(in_.b, first + s, head_ / s_.per_group);
      rows_.scale(b, storage_.read(from, b, s_.columns),
                  static_cast<float>(std::exp(last - sums_[s])), s_.columns);
      std::fill(b + s_.columns, b + s_.rows, 0.0f);
    }
    for (int64_t n = 0; n < s_.rows; n += kTileRows) {
      for (int64_t s = 0; s < count_; ++s) {
        std::copy_n(scaled + s * s_.rows + n, kTileRows, work_.packed + s * kTileRows);
      }
      for (int64_t j = 0; j < s_.width; j += simd_.tile_columns) {
        simd_.tile(count_, work_.packed, work_.right + j, s_.width, state_ + n * s_.width + j,
                   s_.width, true);
      }
    }
  }

  const Simd& simd_;
  const RowFunctions& rows_;  // of float32
  const Format& storage_;
  const SsdInputs& in_;
  const SsdParams& params_;
  const Sizes& s_;
  const Work work_;
  const int64_t row_, head_;
  const double decay_;  // A
  const float skip_;
  float* const state_;  // S^T, [rows, width]
  int64_t count_ = 0;   // tokens of the chunk
  double sums_[kChunk];
};

}  // namespace

void CpuOps::ssd_chunks(const Tensor& y, const Tensor& state_after, const SsdInputs& in,
                        const SsdParams& params) {
  const Format storage(*simd_, in.x.dtype());
  const Sizes sizes(in, simd_->tile_columns);
  const int64_t groups = in.b.dim(2), columns = sizes.columns;
  const int64_t floats = Work::floats(sizes);
  Arena::Scope scope(arena());
  const Tensor products =
      arena().take(DType::f32, {in.x.dim(0) * groups, sizes.chunks, kChunk, kChunk});
  const Tensor scratch = arena().take(DType::f32, {pool_.size(), std::max(floats, 2 * columns)});

  const double row_cost = static_cast<double>(kChunk * columns) / 4;
  pool_.for_each(in.x.dim(0) * groups * sizes.tokens, row_cost, [&](int64_t unit, int worker) {
    const int64_t t = unit % sizes.tokens, group = unit / sizes.tokens % groups;
    const int64_t row = unit / sizes.tokens / groups, first = t / kChunk * kChunk;
    const auto vector = [&](const Tensor& v, int64_t token) {
      return storage.at(v, row * v.stride(0) + token * v.stride(1) + group * v.stride(2));
    };
    float* buffer = scratch.data<float>() + worker * scratch.dim(1);
    const float* c = storage.read(vector(in.c, t), buffer, columns);
    float* to =
        products.data<float>() +
        (((row * groups + group) * sizes.chunks + t / kChunk) * kChunk + t - first) * kChunk;
    for (int64_t s = first; s <= t; ++s) {
      to[s - first] =
          simd_->dot(c, storage.read(vector(in.b, s), buffer + columns, columns), columns);
    }
  });

  const double cost = static_cast<double>(sizes.tokens * sizes.width * (columns + kChunk)) / 8;
  pool_.for_each(in.x.dim(0) * sizes.heads, cost, [&](int64_t unit, int worker) {
    const int64_t row = unit / sizes.heads, head = unit % sizes.heads;
    const Work work(scratch.data<float>() + worker * scratch.dim(1), sizes);
    Head scan(*simd_, storage, in, params, sizes, work, row, head);
    scan.start();
    const int64_t group = row * groups + head / sizes.per_group;
    for (int64_t k = 0; k < sizes.chunks; ++k) {
      scan.chunk(k * kChunk, products.data<float>() + (group * sizes.chunks + k) * kChunk * kChunk,
                 y);
    }
    if (state_after.defined()) scan.finish(state_after);
  });
}

void CpuOps::do_ssd_scan(const Tensor& y, const Tensor& state_after, const SsdInputs& in,
                         const SsdParams& params) {
  require_storage("ssd_scan", in.x);
  if (params.form == SsdForm::step) {
    settle_for_simd("step");
    return ssd_step(y, state_after, in);
  }
  settle_for_simd("chunks");
  ssd_chunks(y, state_after, in, params);
}

}  // namespace plumb::cpu
