// Pools and upsampling of the last two axes. One unit of work is a row of results.
#include <array>
#include <limits>

#include "kernels/cpu/cpu_ops.h"

namespace plumb::cpu {

void CpuOps::do_pool(const PoolCall& call) {
  const Tensor &out = call.out, &x = call.x;
  const Format storage = format(call.row.name, x);
  if (out.numel() == 0) return;
  const PoolParams& p = call.params;
  const Windows down = call.windows(0), across = call.windows(1);
  const int64_t width = x.dim(3), results = out.dim(3);
  const RowOffsets to(out), planes(x, 2);
  Arena::Scope scope(arena());
  const Tensor scratch = arena().take(DType::f32, {pool_.size(), width + results});
  const double cost = static_cast<double>(results * p.kernel[0] * p.kernel[1]);
  const float start = call.is_mean() ? 0 : -std::numeric_limits<float>::infinity();
  pool_.for_each(to.count(), cost, [&](int64_t unit, int worker) {
    float* line = scratch.data<float>() + worker * (width + results);
    float* values = line + width;
    std::fill_n(values, results, start);
    int64_t rows = 0;
    for (int64_t k = 0; k < p.kernel[0]; ++k) {
      const int64_t row = down.source(unit % out.dim(2), k);
      if (row < 0) continue;
      ++rows;
      const int64_t offset = planes[unit / out.dim(2)] + row * x.stride(2);
      storage.widen(line, storage.at(x, offset), width);
      for (int64_t l = 0; l < p.kernel[1]; ++l) {
        for (int64_t i = 0; i < results; ++i) {
          const int64_t column = across.source(i, l);
          if (column < 0) continue;
          const float value = line[column];
          if (call.is_mean()) values[i] += value;
          else if (value > values[i] || value != value) values[i] = value;
        }
      }
    }
    for (int64_t i = 0; call.is_mean() && i < results; ++i) {
      int64_t columns = 0;
      for (int64_t l = 0; l < p.kernel[1]; ++l) columns += across.source(i, l) >= 0;
      values[i] /= static_cast<float>(divisor_of_mean(p, rows * columns));
    }
    storage.write(storage.at(static_cast<char*>(out.raw()), to[unit]), values, results);
  });
}

void CpuOps::do_upsample_nearest2d(const Tensor& out, const Tensor& x) {
  require_storage("upsample_nearest2d", x);
  settle_for("scalars");
  if (out.numel() == 0) return;
  const RowOffsets to(out), planes(x, 2);
  const float down = nearest_scale(x.dim(2), out.dim(2)),
              across = nearest_scale(x.dim(3), out.dim(3));
  const auto run = [&]<class T>(T) {
    pool_.for_each(to.count(), static_cast<double>(out.dim(3)), [&](int64_t unit, int) {
      const int64_t row = nearest_source(unit % out.dim(2), down, x.dim(2));
      const T* from = x.data<T>() + planes[unit / out.dim(2)] + row * x.stride(2);
      T* line = out.data<T>() + to[unit];
      for (int64_t i = 0; i < out.dim(3); ++i) line[i] = from[nearest_source(i, across, x.dim(3))];
    });
  };
  x.dtype() == DType::f32 ? run(uint32_t{}) : run(uint16_t{});
}

}  // namespace plumb::cpu
