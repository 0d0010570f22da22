#include "harness/execution/placement.h"

#include <cstring>

#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// Host memory under the name of a device whose ops work on such.
class BorrowedStorage final : public Storage {
 public:
  BorrowedStorage(const Tensor& host, const void* owner)
      : Storage(host.raw(), host.bytes(), owner), host_(host) {}

 private:
  const Tensor host_;
};

}  // namespace

Placement::Placement(Device& device, const HostOperands& operands, ResidentWeights* resident,
                     const std::map<std::string, std::string>& keys)
    : device_(&device), resident_(resident) {
  for (const auto& [name, host] : operands.inputs) place("input", name, host, inputs);
  for (const auto& [name, host] : operands.weights) {
    const auto key = keys.find(name);
    std::shared_ptr<Resident> held;
    if (resident && key != keys.end()) held = resident->get(key->second, host);
    if (!held) {
      place("weight", name, host, weights);
      continue;
    }
    weights[name] = held->tensor();
    guarded_.push_back({"weight", name, std::move(held), &host});
  }
  for (const OutputSpec& spec : operands.outputs) {
    auto held = std::make_shared<Resident>(device, spec.dtype, spec.shape);
    outputs[spec.name] = held->tensor();
    guarded_.push_back({"output", spec.name, std::move(held), nullptr});
  }
}

Placement Placement::trusted(Device& device, const HostOperands& operands) {
  const void* owner = device.host_owner();
  if (!owner) return Placement(device, operands);
  Placement out(device);
  out.borrow(operands, owner);
  return out;
}

void Placement::borrow(const HostOperands& operands, const void* owner) {
  const auto lend = [&](const Tensor& host) {
    return Tensor(std::make_shared<BorrowedStorage>(host, owner), host.dtype(), host.shape());
  };
  for (const auto& [name, host] : operands.inputs) inputs[name] = lend(host);
  for (const auto& [name, host] : operands.weights) weights[name] = lend(host);
  for (const OutputSpec& spec : operands.outputs) {
    outputs[spec.name] = device_->allocate(spec.dtype, spec.shape);
  }
}

void Placement::place(const char* role, const std::string& name, const Tensor& host,
                      std::map<std::string, Tensor>& into) {
  auto held = std::make_shared<Resident>(*device_, host.dtype(), host.shape());
  held->upload(host);
  into[name] = held->tensor();
  guarded_.push_back({role, name, std::move(held), &host});
}

void Placement::poison(uint8_t byte) {
  for (const Buffer& buffer : guarded_) {
    if (damaged_) buffer.held->mend();
    if (damaged_ && buffer.host) buffer.held->upload(*buffer.host);
  }
  damaged_ = false;
  for (const auto& [name, tensor] : outputs) device_->fill(tensor, byte);
}

std::string Placement::damage() {
  std::string found;
  for (const Buffer& buffer : guarded_) {
    if (buffer.host && buffer.held->intact()) continue;
    const std::string where = buffer.held->guard().damage();
    if (!where.empty()) {
      found = text("wrote out of bounds: ", where, " of ", buffer.role, " \"", buffer.name, '"');
    } else if (buffer.host && !buffer.held->holds(*buffer.host)) {
      found = text("changed its ", buffer.role, " \"", buffer.name, "\" in place");
    }
    if (!found.empty()) break;
  }
  damaged_ = !found.empty();
  if (damaged_ && resident_) resident_->clear();
  return found;
}

}  // namespace plumb::harness
