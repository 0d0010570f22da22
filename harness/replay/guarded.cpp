#include "harness/replay/guarded.h"

#include "kernels/error.h"

namespace plumb::harness {
namespace {

constexpr int64_t kBand = 4096;  // bytes on each side
constexpr uint8_t kCanary = 0xa5;

}  // namespace

Guarded::Guarded(Device& device, DType dtype, const Shape& shape) : device_(&device) {
  int64_t bytes = 0;
  require(!__builtin_mul_overflow(shape.numel(), size_of(dtype), &bytes) &&
              bytes <= INT64_MAX - 2 * kBand,
          "buffer", shape, ' ', name_of(dtype), " is larger than 2^63 bytes");
  whole_ = device.allocate(DType::u8, {bytes + 2 * kBand});
  mend();
  payload_ = whole_.slice(0, kBand, kBand + bytes);
  tensor_ = payload_.reinterpret(dtype, shape);
}

void Guarded::mend() { device_->fill(whole_, kCanary); }

std::vector<uint8_t> Guarded::bytes() const {
  std::vector<uint8_t> out(static_cast<size_t>(payload_.bytes()));
  device_->download(out.data(), payload_);
  return out;
}

std::string Guarded::damage() const {
  std::vector<uint8_t> band(static_cast<size_t>(kBand));
  device_->download(band.data(), whole_.slice(0, 0, kBand));
  for (int64_t i = kBand - 1; i >= 0; --i) {
    if (band[static_cast<size_t>(i)] != kCanary) {
      return text(kBand - i, " byte(s) before the start");
    }
  }
  const int64_t end = whole_.bytes() - kBand;
  device_->download(band.data(), whole_.slice(0, end, end + kBand));
  for (int64_t i = 0; i < kBand; ++i) {
    if (band[static_cast<size_t>(i)] != kCanary) return text("byte ", i, " past the end");
  }
  return {};
}

}  // namespace plumb::harness
