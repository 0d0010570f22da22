// One token of the Mamba2 scan: S = S exp(dt A) + R(R(dt b) x), y = R(R(R(S) c) + R(x d)).
//
// Few instructions separate the read of the state [B, H, P, N] from its write, but each waits for
// the one before: a wave owns so few rows of one head that all waves together hide that, and a lane
// N neighbouring columns. Where no op in flight writes them, the state and what a head has of its
// own are read while the kernels ahead end; blocks are small, with few registers, so as to find a
// place by then. Every element is read and written by one lane: the state may be updated in place.
#include "kernels/gpu/ssd.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 128, kBlocks = 8;  // of a multiprocessor: at most 64 registers
constexpr int kInFlight = 4;                // elements of a lane's row that are read at once
constexpr int kRows = 2;                    // of a wave

// What a lane has of kRows rows of the state: vectors of N columns, N * Wave apart.
template <int Wave, int N>
struct StatePart {
  static constexpr int kVectors = kInFlight / N;
  Vector<float, N> v[kRows][kVectors];

  __device__ StatePart(const float* first, int64_t row, int column, int columns) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int n = column + j * N * Wave;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        v[r][j] = n < columns ? load_vector<N>(first + r * row + n) : Vector<float, N>{};
      }
    }
  }
};

template <class T, int Wave, int N, bool Early>
__global__ void __launch_bounds__(kThreads, kBlocks)
    step_state_rows(SsdOperands<T> p, Strided<T> y, Divisor groups, Divisor heads, int waves) {
  using Part = StatePart<Wave, N>;
  if (!Early) wait_for_previous_kernel();
  const int thread = static_cast<int>(thread_index().x), lane = thread % Wave;
  const int columns = static_cast<int>(p.columns);
  const int wave = static_cast<int>(block_index().x) * (kThreads / Wave) + thread / Wave;
  const bool active = wave < waves;
  const Division place = divide(active ? wave : 0, groups), outer = divide(place.quotient, heads);
  const int64_t head = outer.remainder, batch = outer.quotient;
  const int64_t first_row = int64_t{place.remainder} * kRows;
  const int rows =
      p.head_dim - first_row < kRows ? static_cast<int>(p.head_dim - first_row) : kRows;
  const int64_t last = rows - 1;  // in place of a second row that is not there
  const float* before = p.state.at(batch, head, first_row);
  const int64_t row_before = last * p.state.stride[2];
  Part kept(before, row_before, lane * N, active ? columns : 0);
  const float bias = to_float(p.dt_bias[head]), rate = p.rate(head), d = to_float(p.d[head]);
  if (Early) wait_for_previous_kernel();
  if (!active) return;
  const int group = static_cast<int>(head) / static_cast<int>(p.per_group);
  const T* b = p.b.at(batch, 0, group);
  const T* c = p.c.at(batch, 0, group);
  const T* values = p.x.at(batch, 0, head) + first_row;
  float x[kRows], sum[kRows] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) x[r] = to_float(values[r * last]);
  const float dt = p.time_step(batch, 0, head, bias);
  const float decay = expf(dt * rate);
  float* after = p.after.data ? p.after.at(batch, head, first_row) : nullptr;
  for (int first = lane * N;;) {
    Vector<T, N> in[Part::kVectors]{}, out[Part::kVectors]{};
#pragma unroll
    for (int j = 0; j < Part::kVectors; ++j) {
      const int n = first + j * N * Wave;
      if (n >= columns) continue;
      in[j] = load_vector<N>(b + n);
      out[j] = load_vector<N>(c + n);
    }
#pragma unroll
    for (int j = 0; j < Part::kVectors; ++j) {
      const int n = first + j * N * Wave;
      if (n >= columns) break;
      const Floats<T, N> entering(in[j]), leaving(out[j]);
      Vector<float, N> next[kRows];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float step = rounded<T>(dt * entering[i]);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          next[r][i] = kept.v[r][j][i] * decay + rounded<T>(step * x[r]);
          sum[r] = fused_multiply_add(rounded<T>(next[r][i]), leaving[i], sum[r]);
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (after && r < rows) store_vector(after + r * p.after.stride[2] + n, next[r]);
      }
    }
    first += kInFlight * Wave;
    if (first - lane * N >= columns) break;
    kept = Part(before, row_before, first, columns);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float total_of_row = warp_sum<Wave>(sum[r]);
    if (lane != r || r >= rows) continue;
    y.at(batch, 0, head)[first_row + r] =
        from_float<T>(rounded<T>(total_of_row) + rounded<T>(x[r] * d));
  }
}

}  // namespace

void GpuOps::ssd_step(const Tensor& y, const Tensor& state_after, const SsdInputs& in) {
  if (y.numel() == 0) return;
  with_storage("ssd_scan", in.x.dtype(), [&]<class T>(T) {
    const SsdOperands<T> p(state_after, in, {});
    const int64_t groups = (p.head_dim + kRows - 1) / kRows;
    const bool early = in_flight_.settled_ahead(in.state) && in_flight_.settled(in.a_log) &&
                       in_flight_.settled(in.d) && in_flight_.settled(in.dt_bias);
    const int64_t waves = divisible("ssd_scan", p.batch * p.heads * groups);
    with_wave(stream(), [&]<int Wave>() {
      const auto with = [&]<int N, bool Early>() {
        constexpr auto kKernel = step_state_rows<T, Wave, N, Early>;
        launch_overlapped<kKernel>("ssd_scan", {grid_for(waves, kThreads / Wave)}, {kThreads}, 0,
                                   stream(), p, Strided<T>(y), Divisor(groups), Divisor(p.heads),
                                   static_cast<int>(waves));
      };
      const auto go = [&]<int N>() {
        if (early) with.template operator()<N, true>();
        else with.template operator()<N, false>();
      };
      // A lane's vector, if all rows are made of such and no lane is left without.
      const auto fits = [&](int n) {
        const auto whole = [&](const Tensor& t) {
          return !t.defined() || rows_are_multiples_of(n * size_of(t.dtype()), t);
        };
        return p.columns >= n * Wave && whole(in.state) && whole(state_after) && whole(in.b) &&
               whole(in.c);
      };
      if (fits(4)) go.template operator()<4>();
      else if (fits(2)) go.template operator()<2>();
      else go.template operator()<1>();
    });
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
