// One token of the Mamba2 scan: S = S exp(dt A) + R(R(dt b) x), y = R(R(R(S) c) + R(x d)).
//
// Few instructions stand between reading the state [B, H, P, N] and writing it, but each waits for
// the one before: a wave owns so few rows of one head that all waves together hide that, and a lane
// N neighbouring columns. Every element is read and written by one lane: the state may be updated
// in place.
#include "kernels/gpu/ssd.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256, kInFlight = 4;  // elements of a lane's row that are read at once
constexpr int kRows = 2;                      // of a wave

template <class T, int Wave, int N>
__global__ void __launch_bounds__(kThreads)
    step_state_rows(SsdOperands<T> p, Strided<T> y, Divisor groups, Divisor heads) {
  constexpr int kVectors = kInFlight / N;
  const int lane = static_cast<int>(thread_index().x) % Wave, columns = static_cast<int>(p.columns);
  const int64_t waves = int64_t{grid_size().x} * (kThreads / Wave);
  const int64_t total = p.batch * p.heads * groups.value();
  int64_t item = int64_t{block_index().x} * (kThreads / Wave) + thread_index().x / Wave;
  wait_for_previous_kernel();
  for (; item < total; item += waves) {
    const Division place = divide(item, groups), outer = divide(place.quotient, heads);
    const int64_t first_row = int64_t{place.remainder} * kRows;
    const int64_t head = outer.remainder, batch = outer.quotient;
    const int64_t rows = p.head_dim - first_row < kRows ? p.head_dim - first_row : kRows;
    const int group = static_cast<int>(head) / static_cast<int>(p.per_group);
    const T* b = p.b.at(batch, 0, group);
    const T* c = p.c.at(batch, 0, group);
    const float* before[kRows];
    float* after[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = first_row + (r < rows ? r : 0);
      before[r] = p.state.at(batch, head, row);
      after[r] = p.after.data && r < rows ? p.after.at(batch, head, row) : nullptr;
    }
    const T* values = p.x.at(batch, 0, head) + first_row;
    float x[kRows], sum[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) x[r] = to_float(values[r < rows ? r : 0]);
    const float d = to_float(p.d[head]), dt = p.time_step(batch, 0, head);
    const float decay = expf(dt * p.rate(head));
    for (int first = lane * N; first - lane * N < columns; first += kInFlight * Wave) {
      Vector<float, N> kept[kRows][kVectors]{};
      Vector<T, N> in[kVectors]{}, out[kVectors]{};
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        const int n = first + j * N * Wave;
        if (n >= columns) continue;
#pragma unroll
        for (int r = 0; r < kRows; ++r) kept[r][j] = load_vector<N>(before[r] + n);
        in[j] = load_vector<N>(b + n);
        out[j] = load_vector<N>(c + n);
      }
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        const int n = first + j * N * Wave;
        if (n >= columns) break;
        const Floats<T, N> entering(in[j]), leaving(out[j]);
        Vector<float, N> next[kRows];
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float step = rounded<T>(dt * entering[i]);
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            next[r][i] = kept[r][j][i] * decay + rounded<T>(step * x[r]);
            sum[r] = fused_multiply_add(rounded<T>(next[r][i]), leaving[i], sum[r]);
          }
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          if (after[r]) store_vector(after[r] + n, next[r]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float total_of_row = warp_sum<Wave>(sum[r]);
      if (lane != r || r >= rows) continue;
      y.at(batch, 0, head)[first_row + r] =
          from_float<T>(rounded<T>(total_of_row) + rounded<T>(x[r] * d));
    }
  }
}

}  // namespace

void GpuOps::ssd_step(const Tensor& y, const Tensor& state_after, const SsdInputs& in) {
  if (y.numel() == 0) return;
  with_storage("ssd_scan", in.x.dtype(), [&]<class T>(T) {
    const SsdOperands<T> p(state_after, in, {});
    const int64_t groups = (p.head_dim + kRows - 1) / kRows;
    const int64_t waves = divisible("ssd_scan", p.batch * p.heads * groups);
    with_wave(stream(), [&]<int Wave>() {
      const auto go = [&]<int N>() {
        constexpr auto kKernel = step_state_rows<T, Wave, N>;
        launch_overlapped<kKernel>("ssd_scan", {grid_for(waves, kThreads / Wave)}, {kThreads}, 0,
                                   stream(), p, Strided<T>(y), Divisor(groups), Divisor(p.heads));
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
