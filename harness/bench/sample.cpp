#include "harness/bench/sample.h"

#include <algorithm>
#include <cstring>

#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// Part by part: some devices copy floats alone.
void download_parts(Device& device, char* to, const Tensor& view, int axis = 0) {
  if (view.contiguous()) return device.download(to, view);
  for (int64_t i = 0; i < view.dim(axis); ++i) {
    const Tensor part = view.slice(axis, i, i + 1);
    download_parts(device, to + i * part.bytes(), part, axis + 1);
  }
}

}  // namespace

Picks picks(int64_t extent, int64_t most) {
  const int64_t count = std::min(extent, most);
  if (count < 2) return {extent - count, 1, count};
  int64_t step = (extent - 1) / (count - 1);
  if (step > 1 && step % 2 == 0) --step;  // odd: every place of a power-of-two tile is met
  return {extent - 1 - (count - 1) * step, step, count};
}

Tensor picked(const Tensor& t, int axis, const Picks& at) {
  return t.dim(axis) == 1 || at.count == 0 ? t : t.every(axis, at.first, at.step);
}

Tensor picked_columns(const Tensor& host, const Picks& at) {
  if (!host.defined()) return {};
  Shape shape = host.shape();
  shape.set(-1, at.count);
  const Tensor out = host_tensor(host.dtype(), shape);
  const int64_t size = size_of(host.dtype());
  int64_t to = 0;
  for_each_row(host, [&](int64_t row) {
    for (int64_t i = 0; i < at.count; ++i, ++to) {
      std::memcpy(out.data<char>() + to * size, host.data<char>() + (row + at[i]) * size,
                  static_cast<size_t>(size));
    }
  });
  return out;
}

Tensor collected(Ops& ops, const Tensor& view) {
  if (!view.defined()) return {};
  Tensor dense = view;
  if (!view.contiguous() && is_floating(view.dtype())) {
    dense = ops.device().allocate(view.dtype(), view.shape());
    ops.copy(dense, view);
  }
  const Tensor out = host_tensor(view.dtype(), view.shape());
  download_parts(ops.device(), out.data<char>(), dense);
  return out;
}

}  // namespace plumb::harness
