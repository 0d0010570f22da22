// Operands and outputs of a checkpoint on a device, for any number of runs.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "harness/execution/guarded.h"
#include "harness/execution/host_operands.h"
#include "harness/execution/resident_weights.h"
#include "kernels/core/device.h"

namespace plumb::harness {

class Placement {
 public:
  // Between canaries; weights that `resident` has under a key ([name] -> key) are not uploaded
  // again. Device and operands must outlive this.
  Placement(Device& device, const HostOperands& operands, ResidentWeights* resident = nullptr,
            const std::map<std::string, std::string>& keys = {});
  // For a trusted device whose ops work on host memory: operands stay where they are, and nothing
  // is watched. Like the above where it does not.
  static Placement trusted(Device& device, const HostOperands& operands);

  // To be called before each run: outputs are filled with that byte, and what the last run damaged
  // is as it was.
  void poison(uint8_t byte);
  // "" or what the last run wrote that must not be: a canary, an operand.
  std::string damage();

  std::map<std::string, Tensor> inputs, weights, outputs;

 private:
  struct Buffer {
    const char* role;
    std::string name;
    std::shared_ptr<Resident> held;
    const Tensor* host;  // what it has to hold; null: an output
  };

  explicit Placement(Device& device) : device_(&device) {}
  void borrow(const HostOperands& operands, const void* owner);
  void place(const char* role, const std::string& name, const Tensor& host,
             std::map<std::string, Tensor>& into);

  Device* device_;
  ResidentWeights* resident_ = nullptr;
  std::vector<Buffer> guarded_;
  bool damaged_ = false;
};

}  // namespace plumb::harness
