// Safetensors files put together byte by byte, without the library.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/tensor.h"

namespace plumb::harness {

struct RawTensor {
  std::string name;
  std::string dtype;  // as the file writes it: "BF16"
  std::vector<int64_t> shape;
  std::string bytes;
};

// A little-endian length, the header as it is, and the payload.
std::string safetensors_file(const std::string& header, const std::string& payload);
std::string safetensors_file(uint64_t length, const std::string& header,
                             const std::string& payload);
// A good file with these tensors one after the other.
std::string safetensors_file(const std::vector<RawTensor>& tensors);

// The elements' bytes.
template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace plumb::harness
