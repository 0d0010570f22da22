#include "kernels/core/device.h"

#include <chrono>

#include "kernels/core/checksum.h"

namespace plumb {

double Device::time(const std::function<void()>& queue_work) {
  using Clock = std::chrono::steady_clock;
  synchronize();
  const auto start = Clock::now();
  queue_work();
  synchronize();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

uint64_t Device::checksum(const Tensor& t) {
  if (host_owner()) return checksum_of(t.raw(), t.bytes());
  std::vector<char> bytes(static_cast<size_t>(t.bytes()));
  download(bytes.data(), t);
  return checksum_of(bytes.data(), t.bytes());
}

}  // namespace plumb
