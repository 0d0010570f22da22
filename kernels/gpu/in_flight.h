// InFlight: what queued ops may still be about to write. All else may be read before the kernels
// ahead have ended.
#pragma once

#include <set>
#include <vector>

#include "kernels/tensor.h"

namespace plumb::PLUMB_GPU_VENDOR {

class InFlight {
 public:
  void note(const std::vector<Tensor>& written) {
    for (const Tensor& t : written) {
      if (t.defined()) blocks_.insert(t.storage().data);
    }
  }
  // What another queue's ops write, too: a graph's, whenever it is replayed.
  void note(const InFlight& other) { blocks_.insert(other.blocks_.begin(), other.blocks_.end()); }
  // The host has waited for the queue.
  void clear() { blocks_.clear(); }
  bool settled(const Tensor& t) const { return blocks_.count(t.storage().data) == 0; }

 private:
  std::set<const void*> blocks_;  // of memory, whole ones
};

}  // namespace plumb::PLUMB_GPU_VENDOR
