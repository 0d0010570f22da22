#include "harness/ops/placed_sample.h"

#include <algorithm>
#include <cstring>

#include "kernels/core/error.h"

namespace plumb::harness {

PlacedSample::PlacedSample(const OpSample& sample, Device& device)
    : hosts_(sample.call.tensors()), sample_(sample), device_(device) {
  for (const Tensor& host : hosts_) {
    const bool takes_over = sample.in_place && operands_.size() == first_input();
    operands_.push_back(!host.defined() ? nullptr
                        : takes_over    ? operands_[0]
                                     : std::make_shared<LaidOut>(device, host.dtype(), host.shape(),
                                                                 sample.layout));
  }
}

void PlacedSample::run(uint8_t memory, std::vector<OpRecord>& records) {
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < operands_.size(); ++i) {
    tensors.push_back(operands_[i] ? operands_[i]->tensor() : Tensor());
    if (!operands_[i]) continue;
    if (sample_.call.writes(i)) operands_[i]->fill(memory);
    else operands_[i]->put(hosts_[i].raw());
  }
  Ops& ops = device_.ops();
  ops.arena().set_poison(memory);
  ops.confine(PageEnd::left);
  ops.observe(&records);
  const std::unique_ptr<Ops, void (*)(Ops*)> observed(&ops, [](Ops* it) { it->observe(nullptr); });
  sample_.call.with(tensors).on(ops);
  device_.synchronize();
}

std::vector<Tensor> PlacedSample::outputs() const {
  std::vector<Tensor> out;
  for (size_t i = 0; i < first_input(); ++i) {
    out.push_back(operands_[i] ? host_tensor(hosts_[i].dtype(), hosts_[i].shape()) : Tensor());
    if (!operands_[i]) continue;
    const std::vector<uint8_t> bytes = operands_[i]->bytes();
    std::copy(bytes.begin(), bytes.end(), out[i].data<uint8_t>());
  }
  return out;
}

std::string PlacedSample::damage() const {
  for (size_t i = 0; i < operands_.size(); ++i) {
    if (!operands_[i]) continue;
    const std::string outside = operands_[i]->damage();
    if (!outside.empty()) return text("wrote out of bounds: ", outside, ' ', words_for(i));
    if (sample_.call.writes(i) || operands_[i] == operands_[0]) continue;
    const std::vector<uint8_t> bytes = operands_[i]->bytes();
    if (std::memcmp(bytes.data(), hosts_[i].raw(), bytes.size()) == 0) continue;
    return text("changed its input ", words_for(i), " in place");
  }
  return {};
}

std::string PlacedSample::words_for(size_t i) const {
  return text('"', row_of(sample_.call.op).operands.operands.at(i).name, '"');
}

}  // namespace plumb::harness
