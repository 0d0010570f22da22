// Which way a device computes a linear of one shape, where `harness tune` has measured that another
// is faster than the device's own first choice.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "kernels/core/tensor.h"

namespace plumb {

// out [rows, outputs] = x [rows, inner] weight^T (+ bias), all contiguous.
struct LinearShape {
  DType dtype = DType::f32;
  int64_t rows = 0, outputs = 0, inner = 0;
  bool bias = false;

  auto operator<=>(const LinearShape&) const = default;
};
LinearShape linear_shape(const Tensor& out, const Tensor& weight, const Tensor& bias);
std::string to_string(const LinearShape& shape);  // "bf16 4096x14336x4096 with bias"

// A kernel by the name of its implementation ("cublaslt"), and what it is given beyond that, in its
// own words without spaces: an algorithm, or nothing.
struct LinearWay {
  std::string kernel, choice = {};
  bool operator==(const LinearWay&) const = default;
};

class TunedLinears {
 public:
  // The file of a device, by what describes it: in $PLUMB_CACHE, or $XDG_CACHE_HOME/plumbline, or
  // ~/.cache/plumbline. Empty where there is no such folder to name.
  static std::string file_of(const std::string& device);

  // Null: as the device itself chooses.
  const LinearWay* find(const LinearShape& shape) const {
    if (ways_.empty()) return nullptr;
    const auto found = ways_.find(shape);
    return found == ways_.end() ? nullptr : &found->second;
  }
  void set(const LinearShape& shape, std::optional<LinearWay> way);
  size_t size() const { return ways_.size(); }
  const std::map<LinearShape, LinearWay>& all() const { return ways_; }

  // A file that is missing, or of another device, says nothing. Throws BadInput for one that is
  // broken, or that others may write.
  void read(const std::string& file, const std::string& device);
  void write(const std::string& file, const std::string& device) const;

 private:
  std::map<LinearShape, LinearWay> ways_;
};

}  // namespace plumb
