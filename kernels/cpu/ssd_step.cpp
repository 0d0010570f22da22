// One token of the Mamba2 scan: S = S exp(dt A) + R(R(dt b) x), y = R(R(R(S) c) + R(x d)).
//
// One unit of work is a head: its state [P, N] is read and written once, a row at a time.
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/ssd_scan.h"

namespace plumb::cpu {

void CpuOps::ssd_step(const Tensor& y, const Tensor& state_after, const SsdInputs& in) {
  const Format storage(*simd_, in.x.dtype());
  const RowFunctions& rows = simd_->floats();
  const int64_t heads = in.x.dim(2), head_dim = in.x.dim(3), columns = in.b.dim(3);
  const int64_t per_group = heads / in.b.dim(2);
  Arena::Scope scope(arena());
  const int64_t floats = 4 * columns;
  const Tensor scratch = arena().take(DType::f32, {pool_.size(), floats + 2 * head_dim});
  const double cost = 2 * static_cast<double>(head_dim * columns);
  pool_.for_each(in.x.dim(0) * heads, cost, [&](int64_t unit, int worker) {
    const int64_t row = unit / heads, head = unit % heads;
    const auto vector = [&](const Tensor& t, int64_t index) {
      return storage.at(t, row * t.stride(0) + index * t.stride(2));
    };
    float* input = scratch.data<float>() + worker * (floats + 2 * head_dim);  // R(dt b)
    float* c = input + columns;
    float* added = c + columns;
    float* next = added + columns;
    float* x = next + columns;
    float* out = x + head_dim;
    const double dt = time_step(in, {}, row, 0, head);
    const auto decay = static_cast<float>(std::exp(dt * -std::exp(of_head(in.a_log, head))));
    storage.widen(input, vector(in.b, head / per_group), columns);
    rows.scale(input, input, static_cast<float>(dt), columns);
    storage.rows().round(input, input, columns);
    storage.widen(c, vector(in.c, head / per_group), columns);
    storage.widen(x, vector(in.x, head), head_dim);
    for (int64_t p = 0; p < head_dim; ++p) {
      const auto state_row = [&](const Tensor& t) {
        return t.data<float>() + row * t.stride(0) + head * t.stride(1) + p * t.stride(2);
      };
      rows.scale(added, input, x[p], columns);
      storage.rows().round(added, added, columns);
      rows.scale(next, state_row(in.state), decay, columns);
      rows.add(next, next, added, columns);
      if (state_after.defined()) std::copy_n(next, columns, state_row(state_after));
      storage.rows().round(next, next, columns);
      out[p] = simd_->dot(next, c, columns);
    }
    storage.rows().round(out, out, head_dim);
    rows.scale(x, x, static_cast<float>(of_head(in.d, head)), head_dim);
    storage.rows().round(x, x, head_dim);
    rows.add(out, out, x, head_dim);
    storage.write(storage.at(static_cast<char*>(y.raw()), row * y.stride(0) + head * y.stride(2)),
                  out, head_dim);
  });
}

}  // namespace plumb::cpu
