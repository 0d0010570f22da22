// Ops of a device that has kernels for some of them only: the others are Unsupported, by name.
#pragma once

#include "kernels/core/error.h"
#include "kernels/ops/device_ops.h"

namespace plumb::portable {

class PartialOps : public DeviceOps {
 public:
  using DeviceOps::DeviceOps;

 protected:
  // `method`: do_rms_norm, and so on.
  [[noreturn]] void lacks(const std::string& method) {
    throw Unsupported(text('[', method.substr(3), "] ", device().name(), " has no kernel for it"));
  }

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
  PLUMB_DEVICE_OPS(
      , override { lacks(__func__); })
#pragma GCC diagnostic pop
};

}  // namespace plumb::portable
