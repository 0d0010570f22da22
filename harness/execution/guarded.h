// Guarded buffers: device memory with canary bands on both sides, so that a write out of bounds is
// seen even when the result is right. A device that checks bounds sees reads, too, where there is
// no band: it gets buffers without.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/device.h"

namespace plumb::harness {

// Bytes; smaller tensors are as quickly copied and compared as summed on the device.
inline constexpr int64_t kSummed = int64_t{64} << 10;

class Guarded {
 public:
  Guarded(Device& device, DType dtype, const Shape& shape);

  const Tensor& tensor() const { return tensor_; }
  const Tensor& whole() const { return whole_; }  // canaries included
  // The canaries as at first; the payload has no meaning then.
  void mend();
  void poison(uint8_t byte) { device_->fill(payload_, byte); }
  // The payload's bytes, copied to the host.
  std::vector<uint8_t> bytes() const;
  // "" or the place of the first damaged canary byte: "17 bytes before the start".
  std::string damage() const;

 private:
  Device* device_;
  int64_t band_ = 0;  // bytes on each side
  Tensor whole_;      // u8: band, payload, band
  Tensor payload_;    // u8
  Tensor tensor_;
};

}  // namespace plumb::harness
