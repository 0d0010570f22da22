// A device whose tensors are in the host's memory and whose ops have finished when they return.
#pragma once

#include "kernels/core/device.h"

namespace plumb {

class HostDevice : public Device {
 public:
  Tensor allocate(DType dtype, const Shape& shape) override;
  void upload(const Tensor& to, const void* from) override;
  void download(void* to, const Tensor& from) override;
  void fill(const Tensor& t, uint8_t byte) override;
  void synchronize() override {}
  const void* host_owner() const override { return this; }

 private:
  void check(const Tensor& t, const char* what) const;
};

}  // namespace plumb
