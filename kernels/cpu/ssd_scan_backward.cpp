// Gradients of the Mamba2 scan, token by token from behind.
//
// With G_t the gradient of the state S_t, G_t = d_y_t (outer) c_t + exp(dt_{t+1} A) G_{t+1}, from
// behind: d_c_t = d_y_t S_t, d_b_t = dt_t x_t G_t, d_x_t = dt_t G_t b_t + d d_y_t, and
// d_dt_t = x_t G_t b_t + A q_t, d_A = sum over t of dt_t q_t, q_t = exp(dt_t A) <G_t, S_{t-1}>.
// The states before every chunk of tokens are kept, those of a chunk's tokens made again, a row of
// the state after the other. A unit of work is a head; what its group shares is added in the order
// of the heads after each chunk.
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/ssd_scan.h"

namespace plumb::cpu {
namespace {

constexpr int64_t kChunkBackward = 64;

// Of a head: work memory.
struct ScanMemory {
  float* gradients;  // [P, N], of the state that a chunk begins with, from behind
  float *d_b, *d_c;  // [kChunkBackward, N] of a chunk
  double* sums;      // of a_log, d and dt_bias
};

class HeadBackward {
 public:
  HeadBackward(const Simd& simd, const Format& storage, const SsdInputs& gradients,
               const Tensor& d_y, const SsdInputs& in, const SsdParams& params, int64_t unit)
      : simd_(simd),
        storage_(storage),
        to_(gradients),
        d_y_(d_y),
        in_(in),
        params_(params),
        row_(unit / in.x.dim(2)),
        head_(unit % in.x.dim(2)),
        group_(head_ / (in.x.dim(2) / in.b.dim(2))),
        head_dim_(in.x.dim(3)),
        columns_(in.b.dim(3)),
        rate_(-std::exp(of_head(in.a_log, head_))),
        skip_(static_cast<float>(of_head(in.d, head_))) {}

  static int64_t floats(const SsdInputs& in) {
    const int64_t columns = in.b.dim(3), head_dim = in.x.dim(3);
    return kChunkBackward * (3 * columns + 3 * head_dim) + 3 * columns;
  }

  // The states before every chunk.
  void forward(float* states, float* scratch) {
    const int64_t tokens = in_.x.dim(1), size = head_dim_ * columns_;
    read_state(in_.state, states);
    for (int64_t first = 0; first + kChunkBackward < tokens; first += kChunkBackward) {
      read(first, kChunkBackward, scratch);
      for (int64_t p = 0; p < head_dim_; ++p) {
        float* row = states + p * columns_;
        std::copy_n(row, columns_, row + size);
        for (int64_t t = 0; t < kChunkBackward; ++t) next_state(row + size, row + size, t, p);
      }
      states += size;
    }
  }
  void read_state(const Tensor& from, float* to) const {
    if (!from.defined()) return static_cast<void>(std::fill_n(to, head_dim_ * columns_, 0.0f));
    for (int64_t p = 0; p < head_dim_; ++p) {
      std::copy_n(state_row(from, p), columns_, to + p * columns_);
    }
  }
  void write_state(const Tensor& to, const float* from) const {
    for (int64_t p = 0; p < head_dim_; ++p) {
      std::copy_n(from + p * columns_, columns_, state_row(to, p));
    }
  }

  // A chunk, given the state before it and the gradient of the one behind it.
  void backward(int64_t first, int64_t count, const float* before, const ScanMemory& memory,
                float* scratch) {
    read(first, count, scratch);
    std::fill_n(memory.d_b, count * columns_, 0.0f);
    std::fill_n(memory.d_c, count * columns_, 0.0f);
    double of_steps[kChunkBackward] = {};
    for (int64_t p = 0; p < head_dim_; ++p) {
      std::copy_n(before + p * columns_, columns_, states_);
      for (int64_t t = 0; t < count; ++t) {
        next_state(states_ + (t + 1) * columns_, states_ + t * columns_, t, p);
      }
      float* const g = memory.gradients + p * columns_;
      for (int64_t t = count - 1; t >= 0; --t) {
        float *d_b = memory.d_b + t * columns_, *d_c = memory.d_c + t * columns_;
        const float* state = states_ + t * columns_;
        const float given = d_y_row_[t * head_dim_ + p], x = x_[t * head_dim_ + p];
        const auto dt = static_cast<float>(steps_[t]), decay = static_cast<float>(decays_[t]);
        const float* c = c_ + t * columns_;
        for (int64_t k = 0; k < columns_; ++k) {
          g[k] += given * c[k];
          d_c[k] += given * state[columns_ + k];
          d_b[k] += dt * x * g[k];
        }
        const double of_input = simd_.dot(g, b_ + t * columns_, columns_);
        for (int64_t k = 0; k < columns_; ++k) g[k] *= decay;
        const double of_decay = simd_.dot(g, state, columns_);
        d_x_[t * head_dim_ + p] = static_cast<float>(steps_[t] * of_input) + skip_ * given;
        of_steps[t] += x * of_input + rate_ * of_decay;
        memory.sums[0] += steps_[t] * rate_ * of_decay;
        memory.sums[1] += static_cast<double>(given) * x;
      }
    }
    for (int64_t t = 0; t < count; ++t) {
      const double gradient = of_steps[t] * time_step_slope(in_, params_, row_, first + t, head_);
      memory.sums[2] += gradient;
      store(to_.dt.dtype(),
            at(to_.dt, row_ * to_.dt.stride(0) + (first + t) * to_.dt.stride(1) + head_), gradient);
      storage_.write(vector(to_.x, first + t, head_), d_x_ + t * head_dim_, head_dim_);
    }
  }

 private:
  char* at(const Tensor& t, int64_t offset) const {
    return storage_.at(static_cast<char*>(t.raw()), offset);
  }
  char* vector(const Tensor& t, int64_t token, int64_t index) const {
    return at(t, row_ * t.stride(0) + token * t.stride(1) + index * t.stride(2));
  }
  float* state_row(const Tensor& t, int64_t p) const {
    return t.data<float>() + row_ * t.stride(0) + head_ * t.stride(1) + p * t.stride(2);
  }

  // A chunk's operands in float32, and its time steps.
  void read(int64_t first, int64_t count, float* scratch) {
    b_ = scratch;
    c_ = b_ + kChunkBackward * columns_;
    states_ = c_ + kChunkBackward * columns_;  // one more than tokens
    x_ = states_ + (kChunkBackward + 1) * columns_;
    d_x_ = x_ + kChunkBackward * head_dim_;
    d_y_row_ = d_x_ + kChunkBackward * head_dim_;
    for (int64_t t = 0; t < count; ++t) {
      steps_[t] = time_step(in_, params_, row_, first + t, head_);
      decays_[t] = std::exp(steps_[t] * rate_);
      storage_.widen(b_ + t * columns_, vector(in_.b, first + t, group_), columns_);
      storage_.widen(c_ + t * columns_, vector(in_.c, first + t, group_), columns_);
      storage_.widen(x_ + t * head_dim_, vector(in_.x, first + t, head_), head_dim_);
      const float* given = d_y_.data<float>() + row_ * d_y_.stride(0) +
                           (first + t) * d_y_.stride(1) + head_ * d_y_.stride(2);
      std::copy_n(given, head_dim_, d_y_row_ + t * head_dim_);
    }
  }
  void next_state(float* to, const float* from, int64_t t, int64_t p) const {
    const auto decay = static_cast<float>(decays_[t]);
    const auto input = static_cast<float>(steps_[t]) * x_[t * head_dim_ + p];
    const float* b = b_ + t * columns_;
    for (int64_t k = 0; k < columns_; ++k) to[k] = from[k] * decay + input * b[k];
  }

  const Simd& simd_;
  const Format& storage_;
  const SsdInputs& to_;
  const Tensor& d_y_;
  const SsdInputs& in_;
  const SsdParams& params_;
  const int64_t row_, head_, group_, head_dim_, columns_;
  const double rate_;  // A
  const float skip_;
  float *b_ = nullptr, *c_ = nullptr, *states_ = nullptr;
  float *x_ = nullptr, *d_x_ = nullptr, *d_y_row_ = nullptr;
  double steps_[kChunkBackward], decays_[kChunkBackward];
};

}  // namespace

void CpuOps::do_ssd_scan_backward(const SsdInputs& gradients, const Tensor& d_y,
                                  const Tensor& d_state_after, const SsdInputs& in,
                                  const SsdParams& params) {
  const Format storage = format("ssd_scan_backward", in.x);
  const int64_t batch = in.x.dim(0), tokens = in.x.dim(1), heads = in.x.dim(2);
  const int64_t head_dim = in.x.dim(3), groups = in.b.dim(2), columns = in.b.dim(3);
  const int64_t units = batch * heads, size = head_dim * columns;
  const int64_t chunks = std::max<int64_t>(1, (tokens + kChunkBackward - 1) / kChunkBackward);
  const int64_t shared = kChunkBackward * columns, floats = HeadBackward::floats(in);
  Arena::Scope scope(arena());
  const auto take = [&](int64_t rows, int64_t row) {
    return arena().take(DType::f32, {rows, row}).data<float>();
  };
  float* const states = take(units, chunks * size);
  float* const of_states = take(units, size);
  float *const d_b = take(units, shared), *const d_c = take(units, shared);
  auto* const sums = arena().take(DType::f64, {units, int64_t{3}}).data<double>();
  float* const scratch = take(pool_.size(), floats);
  std::fill_n(sums, units * 3, 0.0);
  const auto head_of = [&](int64_t unit) {
    return HeadBackward(*simd_, storage, gradients, d_y, in, params, unit);
  };
  const double cost = static_cast<double>(kChunkBackward * size);
  pool_.for_each(units, cost * static_cast<double>(chunks), [&](int64_t unit, int worker) {
    HeadBackward head = head_of(unit);
    head.forward(states + unit * chunks * size, scratch + worker * floats);
    head.read_state(d_state_after, of_states + unit * size);
  });
  for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
    const int64_t first = chunk * kChunkBackward;
    const int64_t count = std::min(kChunkBackward, tokens - first);
    pool_.for_each(units, 3 * cost, [&](int64_t unit, int worker) {
      const ScanMemory memory{of_states + unit * size, d_b + unit * shared, d_c + unit * shared,
                              sums + unit * 3};
      head_of(unit).backward(first, count, states + (unit * chunks + chunk) * size, memory,
                             scratch + worker * floats);
    });
    // The heads of a group, one after the other.
    const int64_t of_group = groups ? heads / groups : 0;
    const double adds = static_cast<double>(of_group * columns);
    pool_.for_each(batch * groups * count, adds, [&](int64_t unit, int) {
      const int64_t t = unit % count, group = unit / count % groups, row = unit / count / groups;
      for (const auto& [to, from] : {std::pair(&gradients.b, d_b), std::pair(&gradients.c, d_c)}) {
        float* sum = from + (row * heads + group * of_group) * shared + t * columns;
        for (int64_t h = 1; h < of_group; ++h) {
          simd_->floats().add(sum, sum, sum + h * shared, columns);
        }
        storage.write(
            storage.at(static_cast<char*>(to->raw()),
                       row * to->stride(0) + (first + t) * to->stride(1) + group * to->stride(2)),
            sum, columns);
      }
    });
  }
  for (int64_t h = 0; h < heads; ++h) {
    double totals[3] = {};
    for (int64_t row = 0; row < batch; ++row) {
      for (int i = 0; i < 3; ++i) totals[i] += sums[(row * heads + h) * 3 + i];
    }
    const auto write = [&](const Tensor& to, double value) {
      store(to.dtype(), to.data<char>() + h * size_of(to.dtype()), value);
    };
    write(gradients.a_log, totals[0]);
    write(gradients.d, totals[1]);
    write(gradients.dt_bias, totals[2]);
  }
  for (int64_t unit = 0; gradients.state.defined() && unit < units; ++unit) {
    head_of(unit).write_state(gradients.state, of_states + unit * size);
  }
}

}  // namespace plumb::cpu
