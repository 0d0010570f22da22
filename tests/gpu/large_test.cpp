// Every op on tensors of more than 2^31 elements and more than 65,535 blocks of rows (a few
// thousand elements on an emulated GPU).
//
// Inputs repeat a short pattern of rows, so that every output row must have the bits of the same op
// on the pattern alone: an index that wraps lands on another row of the pattern.
#include <cmath>
#include <random>

#include "kernels/ops/ops.h"
#include "tests/gpu/gpu_devices.h"

namespace plumb {
namespace {

constexpr int64_t kPeriod = 97;  // prime: no power of two is a multiple of it
constexpr int64_t kMany = int64_t{1} << 31;

// Rows of the given width, a multiple of kPeriod, whose elements exceed 2^31 on a real GPU.
int64_t many_rows(const Device& device, int64_t width) {
  const int64_t rows = is_emulated(device.name()) ? 200 : kMany / width;
  return (rows / kPeriod + 1) * kPeriod;
}
int64_t row_width(const Device& device) { return is_emulated(device.name()) ? 64 : 4096; }

using Values = std::vector<double>;

// Normal values, the same for the same seed.
Values random_values(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Values out(static_cast<size_t>(count));
  for (double& v : out) {  // a sum of twelve uniform numbers
    for (int i = 0; i < 12; ++i) v += static_cast<double>(random()) * 0x1p-32;
    v -= 6;
  }
  return out;
}

Tensor upload(Device& device, DType dtype, const Shape& shape, const Values& values) {
  const Tensor host = host_tensor(dtype, shape);
  for (size_t i = 0; i < values.size(); ++i) {
    store(dtype, host.data<char>() + static_cast<int64_t>(i) * size_of(dtype), values[i]);
  }
  const Tensor out = device.allocate(dtype, shape);
  device.upload(out, host.raw());
  return out;
}

Tensor random_rows(Device& device, int64_t width, uint32_t seed, int64_t rows = kPeriod) {
  return upload(device, DType::bf16, {rows, width}, random_values(rows * width, seed));
}

// Small integers: sums of their products are exact in any order.
Tensor integer_rows(Device& device, int64_t rows, int64_t width, uint32_t seed) {
  Values values = random_values(rows * width, seed);
  for (double& v : values) v = std::round(1.5 * v);
  return upload(device, DType::f16, {rows, width}, values);
}

// [rows, width] of a pattern [period, width].
Tensor repeated(Device& device, const Tensor& pattern, int64_t rows) {
  const int64_t period = pattern.dim(0), width = pattern.dim(1), times = rows / period;
  const Tensor out = device.allocate(pattern.dtype(), {rows, width});
  device.ops().copy(out.view({times, period, width}),
                    pattern.view({1, period, width}).expand(0, times));
  return out;
}

std::vector<uint8_t> row_bytes(Device& device, const Tensor& t, int64_t row) {
  const Tensor one = t.slice(0, row, row + 1);
  std::vector<uint8_t> out(static_cast<size_t>(one.bytes()));
  device.download(out.data(), one);
  return out;
}

// Rows at both ends, around the 2^31-th element and the 2^32-th byte, and anywhere.
std::vector<int64_t> sampled_rows(int64_t rows, int64_t width) {
  std::vector<int64_t> out = {0, 1, rows / 2, rows - 2, rows - 1};
  for (const int64_t at : {kMany / 2 / width, kMany / width, int64_t{65535}, int64_t{65536}}) {
    if (at + 1 < rows) out.insert(out.end(), {at, at + 1});
  }
  std::mt19937_64 random(7);
  for (int i = 0; i < 40; ++i)
    out.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(rows)));
  return out;
}

// Row r of `large` has the bits of row r % period of `small`, both as [rows, width].
void require_repeats(Device& device, const Tensor& large, const Tensor& small) {
  device.synchronize();
  for (const int64_t row : sampled_rows(large.dim(0), large.dim(1))) {
    INFO(device.name() << ": row " << row << " of " << large.dim(0));
    REQUIRE(row_bytes(device, large, row) == row_bytes(device, small, row % small.dim(0)));
  }
}

// An op from rows to rows of the same width, on the pattern and on many rows.
template <class Op>
void check_rows(int inputs, Op op) {
  for (const std::string& name : gpu_devices()) {
    const auto device = open_device(name);
    const int64_t width = row_width(*device), rows = many_rows(*device, width);
    std::vector<Tensor> small, large;
    for (int i = 0; i < inputs; ++i) {
      small.push_back(random_rows(*device, width, static_cast<uint32_t>(i)));
      large.push_back(repeated(*device, small.back(), rows));
    }
    const Tensor few = device->allocate(DType::bf16, {kPeriod, width});
    const Tensor many = device->allocate(DType::bf16, {rows, width});
    op(*device, few, small);
    op(*device, many, large);
    require_repeats(*device, many, few);
  }
}

using Inputs = std::vector<Tensor>;

TEST_CASE("large: elementwise ops") {
  check_rows(1, [](Device& d, const Tensor& y, const Inputs& x) { d.ops().copy(y, x[0]); });
  check_rows(2, [](Device& d, const Tensor& y, const Inputs& x) { d.ops().add(y, x[0], x[1]); });
  check_rows(2, [](Device& d, const Tensor& y, const Inputs& x) { d.ops().mul(y, x[0], x[1]); });
  check_rows(1, [](Device& d, const Tensor& y, const Inputs& x) { d.ops().scale(y, x[0], 0.3); });
  check_rows(1, [](Device& d, const Tensor& y, const Inputs& x) { d.ops().softcap(y, x[0], 3); });
  check_rows(1, [](Device& d, const Tensor& y, const Inputs& x) {
    d.ops().activation(y, x[0], Activation::gelu_tanh);
  });
  check_rows(2, [](Device& d, const Tensor& y, const Inputs& x) {
    d.ops().gated_activation(y, x[0], x[1], Activation::silu);
  });
}

TEST_CASE("large: ops over rows") {
  const auto weight = [](Device& d, const Tensor& y) {
    return random_rows(d, y.dim(1), 9, 1).view({y.dim(1)});
  };
  check_rows(1, [&](Device& d, const Tensor& y, const Inputs& x) {
    d.ops().rms_norm(y, x[0], weight(d, y), {1e-6});
  });
  check_rows(2, [&](Device& d, const Tensor& y, const Inputs& x) {
    d.ops().add_rms_norm(x[1], y, x[0], x[1], weight(d, y), {1e-6});
  });
  check_rows(1, [&](Device& d, const Tensor& y, const Inputs& x) {
    d.ops().layer_norm(y, x[0], weight(d, y), {}, 1e-5);
  });
  check_rows(1, [](Device& d, const Tensor& y, const Inputs& x) { d.ops().softmax(y, x[0]); });
}

TEST_CASE("large: embedding") {
  for (const std::string& name : gpu_devices()) {
    const auto device = open_device(name);
    const int64_t width = row_width(*device), rows = many_rows(*device, width);
    const Tensor weight = random_rows(*device, width, 1);
    Values ids;
    for (int64_t i = 0; i < rows; ++i) ids.push_back(static_cast<double>(i % kPeriod));
    const Tensor out = device->allocate(DType::bf16, {rows, width});
    device->ops().embedding(out, upload(*device, DType::i64, {rows}, ids), weight);
    require_repeats(*device, out, weight);
  }
}

TEST_CASE("large: masked_add and repeat_heads") {
  for (const std::string& name : gpu_devices()) {
    const auto device = open_device(name);
    const int64_t width = row_width(*device) / 2, tokens = many_rows(*device, 2 * width);
    const Tensor x = random_rows(*device, width, 1), mask = random_rows(*device, width, 2);
    const auto by_head = [&](const Tensor& t, int64_t heads) {
      return t.view({1, heads, t.dim(0) / heads, width});
    };
    const Tensor few = device->allocate(DType::bf16, {kPeriod, width});
    device->ops().masked_add(by_head(few, 1), by_head(x, 1), by_head(mask, 1));
    const Tensor many = device->allocate(DType::bf16, {2 * tokens, width});
    device->ops().masked_add(by_head(many, 2), by_head(repeated(*device, x, 2 * tokens), 2),
                             by_head(repeated(*device, mask, tokens), 1));
    require_repeats(*device, many, few);
    device->fill(many, 0);
    device->ops().repeat_heads(by_head(many, 2), by_head(repeated(*device, x, tokens), 1));
    require_repeats(*device, many, x);
  }
}

TEST_CASE("large: products") {
  for (const std::string& name : gpu_devices()) {
    const auto device = open_device(name);
    const bool emulated = is_emulated(name);
    // The logits of 8,400 tokens and a vocabulary of 256,000.
    const int64_t columns = emulated ? 72 : 256000, rows = kPeriod * (emulated ? 2 : 87),
                  inner = 32;
    const Tensor x = integer_rows(*device, kPeriod, inner, 1);
    const Tensor w = integer_rows(*device, columns, inner, 2);
    const Tensor few = device->allocate(DType::f16, {kPeriod, columns});
    const Tensor many = device->allocate(DType::f16, {rows, columns});
    const Tensor large_x = repeated(*device, x, rows);
    device->ops().linear(few, x, w);
    device->ops().linear(many, large_x, w);
    require_repeats(*device, many, few);
    device->fill(many, 0);
    const auto batched = [](const Tensor& t) { return t.view({1, 1, t.dim(0), t.dim(1)}); };
    device->ops().matmul(batched(many), batched(large_x), batched(w), true);
    require_repeats(*device, many, few);
  }
}

TEST_CASE("large: rotary and its table") {
  for (const std::string& name : gpu_devices()) {
    const auto device = open_device(name);
    const int64_t width = is_emulated(name) ? 16 : 128, heads = 8;
    const int64_t tokens = many_rows(*device, heads * width), rows = heads * tokens;
    const auto rotate = [&](const Tensor& x, int64_t h) {
      const int64_t t = x.dim(0) / h;
      const Tensor out = device->allocate(x.dtype(), x.shape());
      const auto table = [&](uint32_t seed) {
        return repeated(*device, random_rows(*device, width, seed), t).view({1, t, width});
      };
      device->ops().rotary(out.view({1, h, t, width}), x.view({1, h, t, width}), table(2), table(3),
                           RotaryStyle::half);
      return out;
    };
    const Tensor x = random_rows(*device, width, 1);
    require_repeats(*device, rotate(repeated(*device, x, rows), heads), rotate(x, 1));

    const Tensor frequencies =
        upload(*device, DType::f32, {width / 2}, Values(static_cast<size_t>(width / 2), 0.1));
    const auto tables = [&](int64_t count) {
      Values positions;
      for (int64_t i = 0; i < count; ++i) positions.push_back(static_cast<double>(i % kPeriod));
      const Tensor cos = device->allocate(DType::bf16, {count, width});
      const Tensor sin = device->allocate(DType::bf16, {count, width});
      device->ops().rotary_table(cos.view({1, count, width}), sin.view({1, count, width}),
                                 upload(*device, DType::i64, {1, count}, positions), frequencies,
                                 1);
      return std::pair(cos, sin);
    };
    const auto few = tables(kPeriod), many = tables(many_rows(*device, width));
    require_repeats(*device, many.first, few.first);
    require_repeats(*device, many.second, few.second);
  }
}

TEST_CASE("large: causal_mask") {
  for (const std::string& name : gpu_devices()) {
    const auto device = open_device(name);
    const int64_t size = is_emulated(name) ? kPeriod : 46400;
    const Tensor out = device->allocate(DType::boolean, {1, 1, size, size});
    AttentionMask mask;
    mask.causal = true;
    mask.window = 1000;
    device->ops().causal_mask(out, mask);
    device->synchronize();
    const Tensor rows = out.view({size, size});
    for (const int64_t row : sampled_rows(size, size)) {
      std::vector<uint8_t> expected(static_cast<size_t>(size));
      for (int64_t key = std::max<int64_t>(0, row - 999); key <= row; ++key)
        expected[static_cast<size_t>(key)] = 1;
      INFO(name << ": row " << row);
      REQUIRE(row_bytes(*device, rows, row) == expected);
    }
  }
}

TEST_CASE("large: sdpa") {
  for (const std::string& name : gpu_devices()) {
    const auto device = open_device(name);
    const bool emulated = is_emulated(name);
    // A multiple of every tile, so that tiles cut every period alike.
    const int64_t period = emulated ? 64 : 1280, width = emulated ? 16 : 128;
    const int64_t heads = emulated ? 2 : 64;
    const auto attend = [&](int64_t periods) {
      const int64_t tokens = periods * period;
      const auto operand = [&](uint32_t seed, int64_t h) {
        const Tensor pattern = random_rows(*device, width, seed, period);
        return repeated(*device, pattern, h * tokens).view({1, h, tokens, width});
      };
      AttentionMask mask;
      mask.causal = true;
      mask.window = period / 2;
      const Tensor out = device->allocate(DType::bf16, {1, tokens, heads, width});
      device->ops().sdpa(out, operand(1, heads), operand(2, 1), operand(3, 1), mask, {0.1, {}});
      return out.view({periods, period * heads * width});
    };
    const Tensor few = attend(3), many = attend(emulated ? 4 : 206);
    device->synchronize();
    for (int64_t p = 1; p < many.dim(0); p += p < 3 ? 1 : 29) {  // the first period sees fewer keys
      INFO(name << ": period " << p << " of " << many.dim(0));
      REQUIRE(row_bytes(*device, many, p) == row_bytes(*device, few, 1));
    }
    REQUIRE(row_bytes(*device, many, many.dim(0) - 1) == row_bytes(*device, few, 1));
  }
}

}  // namespace
}  // namespace plumb
