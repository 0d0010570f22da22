// Launches that a GpuOps holds back until the next op is known, as that may share one: a kernel of
// a few microseconds takes nearly as long again to begin and to end.
#pragma once

#include <vector>

#include "kernels/gpu/gpu.h"
#include "kernels/tensor.h"

namespace plumb::PLUMB_GPU_VENDOR {

// out = x w^T + bias of one row; bias may be undefined.
struct RowProduct {
  Tensor out, x, weight, bias;
};

class HeldBack {
 public:
  explicit HeldBack(Stream stream) : stream_(stream) {}

  // Products of the same row become one launch. settled: no op in flight writes the weights.
  void one_row(RowProduct product, bool settled);
  // Launches what is held, before anything else uses the stream.
  void release() {
    if (!products_.empty()) launch_products();
  }
  void forget() { products_.clear(); }

 private:
  bool joins(const RowProduct& product) const;
  void launch_products();

  Stream stream_;
  std::vector<RowProduct> products_;
  bool settled_ = true;  // the weights of all of them
};

}  // namespace plumb::PLUMB_GPU_VENDOR
