#include "kernels/core/host_device.h"

#include <cstring>

#include "kernels/core/error.h"

namespace plumb {

Tensor HostDevice::allocate(DType dtype, const Shape& shape) {
  int64_t bytes = 0;
  require(!__builtin_mul_overflow(shape.numel(), size_of(dtype), &bytes), "allocate", shape, ' ',
          name_of(dtype), " is larger than 2^63 bytes");
  return Tensor(host_storage(bytes, this), dtype, shape);
}

void HostDevice::upload(const Tensor& to, const void* from) {
  check(to, "upload");
  if (to.bytes() > 0) std::memcpy(to.raw(), from, static_cast<size_t>(to.bytes()));
}

void HostDevice::download(void* to, const Tensor& from) {
  check(from, "download");
  if (from.bytes() > 0) std::memcpy(to, from.raw(), static_cast<size_t>(from.bytes()));
}

void HostDevice::fill(const Tensor& t, uint8_t byte) {
  check(t, "fill");
  if (t.bytes() > 0) std::memset(t.raw(), byte, static_cast<size_t>(t.bytes()));
}

void HostDevice::check(const Tensor& t, const char* what) const {
  require(t.defined() && t.storage().owner == this, what, "the tensor is not on device ", name());
  require(t.contiguous(), what, "the tensor of shape ", t.shape(), " is not contiguous");
}

}  // namespace plumb
