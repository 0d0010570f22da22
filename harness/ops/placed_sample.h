// A sample's operands on a device, and a run of it there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/device.h"
#include "kernels/ops/ops.h"
#include "kernels/ops/samples.h"

namespace plumb::harness {

// What memory holds before a run.
inline constexpr uint8_t kNaNBytes = 0xff, kZeroBytes = 0x00;

class PlacedSample {
 public:
  // Both live as long as this does.
  PlacedSample(const OpSample& sample, Device& device);

  // `memory`: what outputs and scratch hold before.
  void run(uint8_t memory, std::vector<OpRecord>& records);
  // Dense, on the host; undefined where an output was left out.
  std::vector<Tensor> outputs() const;
  // "" or what was written that must not be.
  std::string damage() const;

 private:
  size_t first_input() const {
    return static_cast<size_t>(row_of(sample_.call.op).operands.outputs);
  }
  std::string words_for(size_t i) const;

  const std::vector<Tensor> hosts_;
  const OpSample& sample_;
  Device& device_;
  std::vector<std::shared_ptr<LaidOut>> operands_;
};

}  // namespace plumb::harness
