#include "harness/execution/resident_weights.h"

#include <algorithm>
#include <cstring>

#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

constexpr int64_t kKept = int64_t{1} << 20;  // bytes; smaller ones are as quickly uploaded

}  // namespace

void Resident::upload(const Tensor& host) {
  device_->upload(guard_.tensor(), host.raw());
  if (host.bytes() >= kSummed) sum_ = device_->checksum(guard_.whole());
}

bool Resident::holds(const Tensor& host) const {
  const auto size = static_cast<size_t>(host.bytes());
  if (size == 0) return true;
  if (device_->host_owner()) return std::memcmp(guard_.tensor().raw(), host.raw(), size) == 0;
  return std::memcmp(guard_.bytes().data(), host.raw(), size) == 0;
}

std::shared_ptr<Resident> ResidentWeights::get(const std::string& key, const Tensor& host) {
  if (host.bytes() < kKept || host.bytes() > most_) return nullptr;
  if (auto found = find(key)) return found;
  make_room(host.bytes());
  std::shared_ptr<Resident> held = placed(host);
  items_.push_front({key, held, host.bytes()});
  bytes_ += host.bytes();
  return held;
}

std::shared_ptr<Resident> ResidentWeights::find(const std::string& key) {
  const auto found =
      std::find_if(items_.begin(), items_.end(), [&](const Item& item) { return item.key == key; });
  if (found == items_.end()) return nullptr;
  if (!found->held->intact()) {
    bytes_ -= found->bytes;
    items_.erase(found);
    return nullptr;
  }
  items_.splice(items_.begin(), items_, found);
  return found->held;
}

// What is kept may be what is missing.
std::shared_ptr<Resident> ResidentWeights::placed(const Tensor& host) {
  const auto make = [&] {
    auto out = std::make_shared<Resident>(device_, host.dtype(), host.shape());
    out->upload(host);
    ++uploads_;
    return out;
  };
  try {
    return make();
  } catch (const DeviceError&) {
    if (items_.empty()) throw;
  }
  clear();
  return make();
}

void ResidentWeights::make_room(int64_t bytes) {
  while (!items_.empty() && bytes_ + bytes > most_) {
    bytes_ -= items_.back().bytes;
    items_.pop_back();
  }
}

void ResidentWeights::keep_at_most(int64_t bytes) {
  most_ = bytes;
  make_room(0);
}

void ResidentWeights::clear() {
  items_.clear();
  bytes_ = 0;
}

}  // namespace plumb::harness
