#include "tests/kernels/support.h"

#include <algorithm>
#include <cmath>
#include <random>

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

Guarded::Guarded(Device& device, DType dtype, const Shape& shape, Layout layout)
    : device_(device),
      raw_(device.allocate(DType::u8, {bytes_needed(dtype, shape, guards_of(device, layout))})),
      tensor_(
          lay_out(raw_, guards_of(device, layout), dtype, shape,
                  shape.rank() < 3 && layout == Layout::exchanged ? Layout::contiguous : layout)) {
  device_.fill(raw_, kPattern);
}

template <class Visit>
void Guarded::each_element(const Visit& visit) const {
  const int64_t size = size_of(tensor_.dtype());
  const int64_t start = static_cast<char*>(tensor_.raw()) - static_cast<char*>(raw_.raw());
  for_each_row(tensor_, [&](int64_t offset) {
    for (int64_t i = 0; i < (tensor_.rank() ? tensor_.dim(-1) : 1); ++i) {
      visit(static_cast<size_t>(start + (offset + i) * size));
    }
  });
}

std::vector<uint8_t> Guarded::image() const {
  std::vector<uint8_t> image(static_cast<size_t>(raw_.numel()));
  device_.download(image.data(), raw_);
  return image;
}

void Guarded::put(const std::vector<uint8_t>& image) { device_.upload(raw_, image.data()); }

void Guarded::set(const Values& values) {
  REQUIRE(static_cast<int64_t>(values.size()) == tensor_.numel());
  std::vector<uint8_t> bytes = image();
  size_t i = 0;
  each_element([&](size_t at) { store(tensor_.dtype(), &bytes[at], values[i++]); });
  put(bytes);
}

Values Guarded::get() const {
  const std::vector<uint8_t> bytes = image();
  Values values;
  each_element([&](size_t at) { values.push_back(load(tensor_.dtype(), &bytes[at])); });
  return values;
}

std::vector<uint8_t> Guarded::bytes() const {
  const std::vector<uint8_t> all = image();
  std::vector<uint8_t> out;
  each_element(
      [&](size_t at) { out.insert(out.end(), &all[at], &all[at] + size_of(tensor_.dtype())); });
  return out;
}

void Guarded::fill(uint8_t byte) {
  std::vector<uint8_t> bytes = image();
  each_element([&](size_t at) { std::fill_n(&bytes[at], size_of(tensor_.dtype()), byte); });
  put(bytes);
}

void Guarded::require_guards() const {
  std::vector<uint8_t> bytes = image();
  each_element([&](size_t at) { std::fill_n(&bytes[at], size_of(tensor_.dtype()), kPattern); });
  const auto changed =
      std::find_if(bytes.begin(), bytes.end(), [](uint8_t b) { return b != kPattern; });
  INFO("byte " << changed - bytes.begin() << " of " << bytes.size() << " outside the tensor "
               << tensor_.shape());
  REQUIRE(changed == bytes.end());
}

Guarded holding(Device& device, DType dtype, const Shape& shape, const Values& values,
                Layout layout) {
  Guarded out(device, dtype, shape, layout);
  out.set(values);
  return out;
}

Values random_values(DType dtype, int64_t count, uint32_t seed, double sigma) {
  std::mt19937 bits(seed);
  const auto uniform = [&] { return (bits() + 0.5) * 0x1p-32; };
  Values values(static_cast<size_t>(count));
  for (double& value :
       values) {  // Box and Muller: std::normal_distribution differs among libraries
    const double radius = std::sqrt(-2 * std::log(uniform()));
    value = round_to(dtype, sigma * radius * std::cos(6.283185307179586 * uniform()));
  }
  return values;
}

std::vector<Values> run(Device& device, const std::vector<Guarded*>& outputs,
                        const std::function<void()>& op) {
  std::vector<std::vector<uint8_t>> first;
  for (const uint8_t poison : {uint8_t{0xff}, uint8_t{0}}) {
    device.ops().arena().set_poison(poison);
    for (Guarded* out : outputs) out->fill(poison);
    op();
    device.synchronize();
    for (size_t i = 0; i < outputs.size(); ++i) {
      outputs[i]->require_guards();
      if (poison) first.push_back(outputs[i]->bytes());
      else REQUIRE(outputs[i]->bytes() == first[i]);
    }
  }
  device.ops().arena().set_poison(std::nullopt);
  std::vector<Values> values;
  for (const Guarded* out : outputs) values.push_back(out->get());
  return values;
}

void require_close(const Values& y, const Values& exact, const Values& bound) {
  REQUIRE(y.size() == exact.size());
  REQUIRE(y.size() == bound.size());
  for (size_t i = 0; i < y.size(); ++i) {
    const bool same = std::isnan(exact[i]) ? std::isnan(y[i]) : y[i] == exact[i];
    const bool close = std::fabs(y[i] - exact[i]) <= bound[i];  // false for NaN
    if (same || (std::isfinite(exact[i]) && close)) continue;
    INFO("element " << i << " of " << y.size() << ": " << y[i] << ", exact " << exact[i]
                    << ", error " << y[i] - exact[i] << ", allowed " << bound[i]);
    REQUIRE(close);
  }
}

void require_conforms(DType dtype, const Values& y, const Values& model,
                      const std::vector<int64_t>& stages) {
  if (size_of(dtype) != 2) return;
  REQUIRE(y.size() == model.size());
  double accumulated = 0;
  for (const int64_t terms : stages)
    accumulated += 0.3 * std::sqrt(static_cast<double>(terms)) * kU32;
  const double n = static_cast<double>(y.size());
  const double expected = n * (0.003 + 3 * accumulated / unit_roundoff(dtype));
  const double allowed = std::max(8.0, expected + 3 * std::sqrt(expected));
  double differ = 0;
  for (size_t i = 0; i < y.size(); ++i) differ += y[i] != model[i] && !std::isnan(model[i]);
  INFO(differ << " of " << n << " elements differ from the rounded model, allowed " << allowed);
  REQUIRE(differ <= allowed);
}

double rounding_unit(DType dtype) {
  return dtype == DType::f32 ? kU32 : unit_roundoff(dtype) + 1.01 * kU32;
}

double smallest_step(DType dtype) {
  const DTypeInfo& format = info(dtype);
  return std::ldexp(1.0, format.min_exponent - format.significand_bits);
}

}  // namespace plumb
