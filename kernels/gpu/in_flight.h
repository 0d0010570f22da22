// InFlight: what queued ops may still be about to write. All else may be read before the kernels
// ahead have ended.
#pragma once

#include <set>
#include <vector>

#include "kernels/core/tensor.h"

namespace plumb::PLUMB_GPU_VENDOR {

class InFlight {
 public:
  void note(const std::vector<Tensor>& written) {
    first_of_last_.clear();
    for (const Tensor& t : written) {
      if (!t.defined()) continue;
      const auto [at, is_new] = blocks_.insert(t.storage().data);
      if (is_new) first_of_last_.insert(*at);
    }
  }
  // What another queue's ops write, too: a graph's, whenever it is replayed.
  void note(const InFlight& other) { blocks_.insert(other.blocks_.begin(), other.blocks_.end()); }
  // The host has waited for the queue.
  void clear() {
    blocks_.clear();
    first_of_last_.clear();
  }
  bool settled(const Tensor& t) const { return blocks_.count(t.storage().data) == 0; }
  // Whether no op ahead of the last one writes it: that one may itself.
  bool settled_ahead(const Tensor& t) const {
    return settled(t) || first_of_last_.count(t.storage().data) > 0;
  }

 private:
  std::set<const void*> blocks_;         // of memory, whole ones
  std::set<const void*> first_of_last_;  // which the last op was the first to write
};

}  // namespace plumb::PLUMB_GPU_VENDOR
