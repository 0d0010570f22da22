// An operand in some layout, between bytes of a known pattern: what a kernel writes outside of its
// elements shows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/device.h"

namespace plumb {

// One block; rows wider than the tensor that start off any alignment; or, from rank 3 on, with its
// first two axes exchanged in memory.
enum class Layout { contiguous, padded, exchanged };

class LaidOut {
 public:
  LaidOut(Device& device, DType dtype, const Shape& shape, Layout layout = Layout::contiguous);

  const Tensor& tensor() const { return tensor_; }
  operator const Tensor&() const { return tensor_; }  // NOLINT: a call takes it as its tensor

  // The elements' bytes, in order.
  void put(const void* elements);
  std::vector<uint8_t> bytes() const;
  void fill(uint8_t byte);
  // "" or the first byte outside the elements that has changed.
  std::string damage() const;

 private:
  template <class Visit>
  void each_element(const Visit& visit) const;  // visit(byte offset into raw_)
  std::vector<uint8_t> image() const;

  Device& device_;
  Tensor raw_;
  Tensor tensor_;
};

}  // namespace plumb
