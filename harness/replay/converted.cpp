#include "harness/replay/converted.h"

namespace plumb::harness {

Tensor converted(const Tensor& host, DType to) {
  if (host.dtype() == to) return host;
  const Tensor out = host_tensor(to, host.shape());
  const int64_t from_size = size_of(host.dtype()), to_size = size_of(to);
  for (int64_t i = 0; i < host.numel(); ++i) {
    store(to, out.data<char>() + i * to_size,
          load(host.dtype(), host.data<char>() + i * from_size));
  }
  return out;
}

Tensor converted_mask(const Tensor& host, DType to) {
  const Tensor out = converted(host, to);
  if (!is_floating(host.dtype()) || host.dtype() == to) return out;
  for (int64_t i = 0; i < host.numel(); ++i) {
    const double value = load(host.dtype(), host.data<char>() + i * size_of(host.dtype()));
    if (value == -info(host.dtype()).max) {
      store(to, out.data<char>() + i * size_of(to), -info(to).max);
    }
  }
  return out;
}

}  // namespace plumb::harness
