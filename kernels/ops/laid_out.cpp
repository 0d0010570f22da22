#include "kernels/ops/laid_out.h"

#include <algorithm>
#include <cstring>

#include "kernels/core/error.h"

namespace plumb {
namespace {

constexpr int64_t kGuardBytes = 256;
constexpr uint8_t kPattern = 0xa5;

// begin: bytes in front.
Tensor lay_out(const Tensor& raw, int64_t begin, DType dtype, const Shape& shape, Layout layout) {
  const int64_t bytes = shape.numel() * size_of(dtype);
  if (layout == Layout::padded) {
    Shape wide = shape;
    wide.set(-1, shape[-1] + 3);
    const Tensor whole =
        raw.slice(0, begin, begin + wide.numel() * size_of(dtype)).reinterpret(dtype, wide);
    return whole.slice(-1, 1, 1 + shape[-1]);
  }
  Shape in_memory = shape;
  if (layout == Layout::exchanged) {
    in_memory.set(0, shape[1]);
    in_memory.set(1, shape[0]);
  }
  const Tensor t = raw.slice(0, begin, begin + bytes).reinterpret(dtype, in_memory);
  return layout == Layout::exchanged ? t.transpose(0, 1) : t;
}

// A device that checks bounds sees reads, too, where there are no guards.
int64_t guards_of(const Device& device, Layout layout) {
  return device.checks_bounds() && layout != Layout::padded ? 0 : kGuardBytes;
}

int64_t bytes_needed(DType dtype, const Shape& shape, int64_t guards) {
  if (guards == 0) return shape.numel() * size_of(dtype);
  Shape wide = shape;
  wide.set(-1, shape[-1] + 3);  // as Layout::padded needs it
  return wide.numel() * size_of(dtype) + 2 * guards;
}

}  // namespace

LaidOut::LaidOut(Device& device, DType dtype, const Shape& shape, Layout layout)
    : device_(device),
      raw_(device.allocate(DType::u8, {bytes_needed(dtype, shape, guards_of(device, layout))})),
      tensor_(
          lay_out(raw_, guards_of(device, layout), dtype, shape,
                  shape.rank() < 3 && layout == Layout::exchanged ? Layout::contiguous : layout)) {
  device_.fill(raw_, kPattern);
}

template <class Visit>
void LaidOut::each_element(const Visit& visit) const {
  const int64_t size = size_of(tensor_.dtype());
  const int64_t start = static_cast<char*>(tensor_.raw()) - static_cast<char*>(raw_.raw());
  for_each_row(tensor_, [&](int64_t offset) {
    for (int64_t i = 0; i < (tensor_.rank() ? tensor_.dim(-1) : 1); ++i) {
      visit(static_cast<size_t>(start + (offset + i) * size));
    }
  });
}

std::vector<uint8_t> LaidOut::image() const {
  std::vector<uint8_t> image(static_cast<size_t>(raw_.numel()));
  device_.download(image.data(), raw_);
  return image;
}

void LaidOut::put(const void* elements) {
  std::vector<uint8_t> bytes = image();
  const auto size = static_cast<size_t>(size_of(tensor_.dtype()));
  const auto* from = static_cast<const uint8_t*>(elements);
  each_element([&](size_t at) {
    std::memcpy(&bytes[at], from, size);
    from += size;
  });
  device_.upload(raw_, bytes.data());
}

std::vector<uint8_t> LaidOut::bytes() const {
  const std::vector<uint8_t> all = image();
  std::vector<uint8_t> out;
  each_element(
      [&](size_t at) { out.insert(out.end(), &all[at], &all[at] + size_of(tensor_.dtype())); });
  return out;
}

void LaidOut::fill(uint8_t byte) {
  const std::vector<uint8_t> elements(static_cast<size_t>(tensor_.bytes()), byte);
  put(elements.data());
}

std::string LaidOut::damage() const {
  std::vector<uint8_t> bytes = image();
  each_element([&](size_t at) { std::fill_n(&bytes[at], size_of(tensor_.dtype()), kPattern); });
  const auto changed =
      std::find_if(bytes.begin(), bytes.end(), [](uint8_t b) { return b != kPattern; });
  if (changed == bytes.end()) return {};
  return text("byte ", changed - bytes.begin(), " of ", bytes.size(), ", outside the tensor ",
              tensor_.shape());
}

}  // namespace plumb
