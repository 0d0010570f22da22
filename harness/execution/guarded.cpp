#include "harness/execution/guarded.h"

#include <algorithm>

#include "kernels/core/error.h"

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
  band_ = device.checks_bounds() ? 0 : kBand;
  whole_ = device.allocate(DType::u8, {bytes + 2 * band_});
  mend();
  payload_ = whole_.slice(0, band_, band_ + bytes);
  tensor_ = payload_.reinterpret(dtype, shape);
}

void Guarded::mend() { device_->fill(whole_, kCanary); }

std::vector<uint8_t> Guarded::bytes() const {
  std::vector<uint8_t> out(static_cast<size_t>(payload_.bytes()));
  device_->download(out.data(), payload_);
  return out;
}

std::string Guarded::damage() const {
  if (band_ == 0) return {};
  // Compared as a whole, which is fast: most bands are whole.
  static const std::vector<uint8_t> intact(static_cast<size_t>(kBand), kCanary);
  std::vector<uint8_t> band(intact.size());
  device_->download(band.data(), whole_.slice(0, 0, kBand));
  if (band != intact) {
    const auto nearest = std::mismatch(band.rbegin(), band.rend(), intact.rbegin()).first;
    return text(nearest - band.rbegin() + 1, " byte(s) before the start");
  }
  const int64_t end = whole_.bytes() - kBand;
  device_->download(band.data(), whole_.slice(0, end, end + kBand));
  if (band != intact) {
    const auto nearest = std::mismatch(band.begin(), band.end(), intact.begin()).first;
    return text("byte ", nearest - band.begin(), " past the end");
  }
  return {};
}

}  // namespace plumb::harness
