#include "harness/replay/converted.h"

#include <algorithm>
#include <array>

namespace plumb::harness {

Tensor converted(const Tensor& host, DType to) {
  if (host.dtype() == to) return host;
  const Tensor out = host_tensor(to, host.shape());
  const int64_t from_size = size_of(host.dtype()), to_size = size_of(to), n = host.numel();
  if (to == DType::f64) {
    load_all(host.dtype(), host.raw(), n, out.data<double>());
    return out;
  }
  std::array<double, 1024> piece{};
  for (int64_t begin = 0; begin < n; begin += std::ssize(piece)) {
    const int64_t count = std::min(n - begin, std::ssize(piece));
    load_all(host.dtype(), host.data<char>() + begin * from_size, count, piece.data());
    store_all(to, out.data<char>() + begin * to_size, count, piece.data());
  }
  return out;
}

Tensor converted_mask(const Tensor& host, DType to) {
  const Tensor out = converted(host, to);
  if (!is_floating(host.dtype()) || host.dtype() == to) return out;
  const int64_t n = host.numel();
  for (int64_t i = 0; i < n; ++i) {
    const double value = load(host.dtype(), host.data<char>() + i * size_of(host.dtype()));
    if (value == -info(host.dtype()).max) {
      store(to, out.data<char>() + i * size_of(to), -info(to).max);
    }
  }
  return out;
}

}  // namespace plumb::harness
