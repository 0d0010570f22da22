// Weights that stay on a device between checkpoints: a layer's are those of its parts, and of every
// step.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "harness/execution/guarded.h"
#include "kernels/core/device.h"

namespace plumb::harness {

// A guarded buffer that knows, where it is large, whether its bytes are those that were uploaded,
// canaries included.
class Resident {
 public:
  Resident(Device& device, DType dtype, const Shape& shape)
      : device_(&device), guard_(device, dtype, shape) {}

  const Tensor& tensor() const { return guard_.tensor(); }
  const Guarded& guard() const { return guard_; }
  void upload(const Tensor& host);
  void mend() { guard_.mend(); }
  // False where that is not known.
  bool intact() const { return sum_ && device_->checksum(guard_.whole()) == *sum_; }
  // The same byte by byte, without the canaries.
  bool holds(const Tensor& host) const;

 private:
  Device* device_;
  Guarded guard_;
  std::optional<uint64_t> sum_;
};

class ResidentWeights {
 public:
  // bytes: that are kept; those that were used last.
  ResidentWeights(Device& device, int64_t bytes) : device_(device), most_(bytes) {}

  // The tensor as it is on the host, uploaded unless it is there and intact: a wild write must not
  // reach other checkpoints. Null for one that is not worth keeping, or too large.
  std::shared_ptr<Resident> get(const std::string& key, const Tensor& host);
  void clear();
  // From now on; the least recently used go.
  void keep_at_most(int64_t bytes);

  int64_t uploads() const { return uploads_; }

 private:
  std::shared_ptr<Resident> find(const std::string& key);
  void make_room(int64_t bytes);
  std::shared_ptr<Resident> placed(const Tensor& host);

  Device& device_;
  int64_t most_;
  int64_t bytes_ = 0, uploads_ = 0;
  struct Item {
    std::string key;
    std::shared_ptr<Resident> held;
    int64_t bytes;
  };
  std::list<Item> items_;  // the last used one first
};

}  // namespace plumb::harness
