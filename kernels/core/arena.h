// Arena: scratch memory of the ops of one device. Nothing is freed between blocks, so a steady
// state allocates nothing.
#pragma once

#include <optional>
#include <vector>

#include "kernels/core/device.h"

namespace plumb {

class Arena {
 public:
  explicit Arena(Device& device) : device_(device) {}

  // A tensor that lives until the enclosing Scope ends.
  Tensor take(DType dtype, const Shape& shape);
  // Fills what take() hands out with this byte, so that a read before a write shows; none to stop.
  // On a device that checks bounds each is an allocation of its own meanwhile.
  void set_poison(std::optional<uint8_t> byte) { poison_ = byte; }
  std::optional<uint8_t> poison() const { return poison_; }

  class Scope {
   public:
    explicit Scope(Arena& arena)
        : arena_(arena), chunk_(arena.chunk_), used_(arena.used_), apart_(arena.apart_.size()) {}
    ~Scope() {
      arena_.chunk_ = chunk_;
      arena_.used_ = used_;
      arena_.apart_.resize(apart_);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    size_t chunk_;
    int64_t used_;
    size_t apart_;
  };

 private:
  Device& device_;
  Tensor take_apart(DType dtype, const Shape& shape);

  std::vector<Tensor> chunks_;  // u8
  size_t chunk_ = 0;            // the one in use
  int64_t used_ = 0;            // bytes of it
  std::vector<Tensor> apart_;   // allocations of their own, until their scopes end
  std::optional<uint8_t> poison_;
};

}  // namespace plumb
