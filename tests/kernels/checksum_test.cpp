// The checksum of bytes: the same at every address, another for other bytes.
#include "kernels/core/checksum.h"

#include <vector>

#include "tests/kernels/test_devices.h"

namespace plumb {
namespace {

std::vector<uint8_t> bytes_of(size_t count) {
  std::vector<uint8_t> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<uint8_t>(i * 37 + i / 251);
  return out;
}

uint64_t sum_of(const std::vector<uint8_t>& bytes) {
  return checksum_of(bytes.data(), static_cast<int64_t>(bytes.size()));
}

}  // namespace

TEST_CASE("the checksum of any number of bytes is the same on every device") {
  for (const std::string& name : test_devices()) {
    const auto device = open_test_device(name);
    for (const size_t count : {0, 1, 7, 8, 9, 2048, 2049, 70001}) {
      INFO(name << ", " << count << " bytes");
      const std::vector<uint8_t> bytes = bytes_of(count);
      const Tensor t = device->allocate(DType::u8, {static_cast<int64_t>(count)});
      device->upload(t, bytes.data());
      CHECK(device->checksum(t) == sum_of(bytes));
    }
  }
}

TEST_CASE("the checksum sees one bit, two words exchanged, and zeros at the end") {
  const std::vector<uint8_t> bytes = bytes_of(4096 + 3);
  for (const size_t at : {size_t{0}, size_t{2000}, bytes.size() - 1}) {
    std::vector<uint8_t> other = bytes;
    other[at] ^= 1;
    CHECK(sum_of(other) != sum_of(bytes));
  }
  std::vector<uint8_t> exchanged = bytes;
  for (size_t i = 0; i < 8; ++i) std::swap(exchanged[i], exchanged[8 + i]);
  CHECK(sum_of(exchanged) != sum_of(bytes));
  std::vector<uint8_t> longer = bytes;
  longer.resize(4096 + 16);
  CHECK(sum_of(longer) != sum_of(bytes));
}

}  // namespace plumb
