// Every kernel at the edges of its tiles and vectors, on emu-check: in device memory that ends at
// the last element, with uninitialised outputs and scratch. Values are held against the
// oracle's.
#include <array>
#include <cmath>
#include <functional>

#include "tests/kernels/support.h"

namespace plumb {
namespace {

// A tensor of random values; `pad`: that many elements of other memory after each row.
struct Operand {
  DType dtype;
  Shape shape;
  uint32_t seed;
  int64_t pad = 0;
};

Tensor make(Device& device, const Operand& x) {
  Shape wide = x.shape;
  wide.set(-1, x.shape[-1] + x.pad);
  const Tensor whole = device.allocate(x.dtype, wide);
  const Values values = random_values(x.dtype, wide.numel(), x.seed);
  std::vector<uint8_t> bytes(static_cast<size_t>(whole.bytes()));
  for (size_t i = 0; i < values.size(); ++i) {
    const double value = is_floating(x.dtype) ? values[i] : std::floor(std::fabs(values[i]) * 10);
    store(x.dtype, &bytes[i * static_cast<size_t>(size_of(x.dtype))],
          x.dtype == DType::boolean ? std::fmod(value, 2) : value);
  }
  device.upload(whole, bytes.data());
  return whole.slice(-1, 0, x.shape[-1]);
}

Values download(Device& device, const Tensor& t) {
  std::vector<uint8_t> bytes(static_cast<size_t>(t.bytes()));
  device.download(bytes.data(), t);
  Values out;
  for (int64_t i = 0; i < t.numel(); ++i) {
    out.push_back(load(t.dtype(), bytes.data() + i * size_of(t.dtype())));
  }
  return out;
}

using Call = std::function<void(Ops&, const Tensor& out, const std::vector<Tensor>& in)>;

Values result(const std::string& name, const Operand& out, const std::vector<Operand>& in,
              const Call& call) {
  const std::unique_ptr<Device> device = open_device(name);
  std::vector<Tensor> inputs;
  for (const Operand& x : in) inputs.push_back(make(*device, x));
  const Tensor y = device->allocate(out.dtype, out.shape);
  call(device->ops(), y, inputs);
  device->synchronize();
  return download(*device, y);
}

// `terms` float32 roundings of values up to `magnitude` and `roundings` of the result to storage.
void require_agreement(const std::string& device, const Operand& out,
                       const std::vector<Operand>& in, double terms, double magnitude,
                       double roundings, const Call& call) {
  const Values y = result(device, out, in, call), exact = result("oracle", out, in, call);
  Values bound;
  for (const double value : exact) {
    const double relative = is_floating(out.dtype) ? roundings * rounding_unit(out.dtype) : 0;
    bound.push_back(2 * relative * std::fmax(std::fabs(value), magnitude / 8) +
                    terms * kU32 * magnitude);
  }
  require_close(y, exact, bound);
}

std::string check_device() { return GENERATE("emu-check:32", "emu-check:64"); }
DType any_storage() { return GENERATE(DType::f32, DType::bf16, DType::f16); }

TEST_CASE("emu-check: elementwise ops") {
  const std::string device = check_device();
  const DType dtype = any_storage();
  for (const auto& [rows, columns, pad] : std::vector<std::array<int64_t, 3>>{{1, 1, 0},
                                                                              {1, 3, 0},
                                                                              {3, 8, 0},
                                                                              {2, 9, 0},
                                                                              {3, 7, 1},
                                                                              {3, 16, 8},
                                                                              {3, 257, 0},
                                                                              {2, 2049, 3}}) {
    INFO(rows << " x " << columns << ", pad " << pad);
    const Operand a{dtype, {rows, columns}, 1, pad}, b{dtype, {rows, columns}, 2, pad};
    const Operand out{dtype, {rows, columns}, 0};
    const auto check = [&](const Call& call) {
      require_agreement(device, out, {a, b}, 16, 32, 4, call);
    };
    check([](Ops& ops, const Tensor& y, const auto& x) { ops.add(y, x[0], x[1]); });
    check([](Ops& ops, const Tensor& y, const auto& x) { ops.mul(y, x[0], x[1]); });
    check([](Ops& ops, const Tensor& y, const auto& x) { ops.scale(y, x[0], 0.3); });
    check([](Ops& ops, const Tensor& y, const auto& x) {
      ops.scale(y, x[0], 1.7, ScaleOperation::divide);
    });
    check([](Ops& ops, const Tensor& y, const auto& x) { ops.softcap(y, x[0], 3); });
    check([](Ops& ops, const Tensor& y, const auto& x) { ops.copy(y, x[0]); });
    for (const Activation f :
         {Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::tanh}) {
      check([&](Ops& ops, const Tensor& y, const auto& x) { ops.activation(y, x[0], f); });
      check([&](Ops& ops, const Tensor& y, const auto& x) {
        ops.gated_activation(y, x[0], x[1], f);
      });
    }
  }
}

TEST_CASE("emu-check: norms and softmax") {
  const std::string device = check_device();
  const DType dtype = any_storage();
  const int64_t pad = GENERATE(0, 1, 8);
  for (const int64_t columns : {1, 3, 4, 8, 9, 31, 64, 65, 255, 256, 1025, 2304, 4104}) {
    INFO(columns << " columns, pad " << pad);
    const Operand x{dtype, {3, columns}, 1, pad}, r{dtype, {3, columns}, 2, pad};
    const Operand w{dtype, {columns}, 3}, b{dtype, {columns}, 4}, out{dtype, {3, columns}, 0};
    const double terms = static_cast<double>(columns) + 16;
    const auto check = [&](double magnitude, const Call& call) {
      require_agreement(device, out, {x, r, w, b}, terms, magnitude, 4, call);
    };
    const RmsNormParams llama{1e-5, 0, WeightRounding::before},
        gemma{1e-6, 1, WeightRounding::after};
    // A row of one element has norm 1; no element of a row exceeds the root of their number.
    const double largest = 4 * std::fmin(5, std::sqrt(static_cast<double>(columns)));
    check(largest,
          [&](Ops& ops, const Tensor& y, const auto& v) { ops.rms_norm(y, v[0], v[2], llama); });
    check(largest,
          [&](Ops& ops, const Tensor& y, const auto& v) { ops.rms_norm(y, v[0], v[2], gemma); });
    check(largest, [&](Ops& ops, const Tensor& y, const auto& v) {
      const Tensor sum = ops.device().allocate(dtype, {3, columns});
      ops.add_rms_norm(sum, y, v[0], v[1], v[2], llama);
      ops.device().synchronize();
    });
    if (columns > 3) {  // else the variance may be next to nothing
      check(largest, [&](Ops& ops, const Tensor& y, const auto& v) {
        ops.layer_norm(y, v[0], v[2], v[3], 1e-5);
      });
      check(largest, [&](Ops& ops, const Tensor& y, const auto& v) {
        ops.layer_norm(y, v[0], v[2], {}, 1e-5);
      });
    }
    check(1, [&](Ops& ops, const Tensor& y, const auto& v) { ops.softmax(y, v[0]); });
  }
}

TEST_CASE("emu-check: products, rows and columns off the tile") {
  const std::string device = check_device();
  const DType dtype = any_storage();
  const int64_t pad = GENERATE(0, 1, 8);
  for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{{1, 1, 1},
                                                                   {1, 65, 8},
                                                                   {3, 7, 16},
                                                                   {8, 33, 264},
                                                                   {9, 63, 17},
                                                                   {4, 5, 15},
                                                                   {65, 64, 16},
                                                                   {64, 65, 31},
                                                                   {63, 3, 33},
                                                                   {1, 9, 1000}}) {
    INFO(m << " x " << n << " x " << k << ", pad " << pad);
    const double inner = static_cast<double>(k);
    const Operand x{dtype, {m, k}, 1, pad}, w{dtype, {n, k}, 2, pad}, bias{dtype, {n}, 3};
    const auto check = [&](const Call& call) {
      require_agreement(device, {dtype, {m, n}, 0}, {x, w, bias}, inner + 4, 4 * inner + 4, 1,
                        call);
    };
    check([](Ops& ops, const Tensor& y, const auto& v) { ops.linear(y, v[0], v[1]); });
    check([](Ops& ops, const Tensor& y, const auto& v) { ops.linear(y, v[0], v[1], v[2]); });
    const Operand a{dtype, {2, 2, m, k}, 4, pad};
    for (const bool transpose : {false, true}) {
      const Operand b{dtype, transpose ? Shape{2, 1, n, k} : Shape{2, 1, k, n}, 5, pad};
      require_agreement(
          device, {dtype, {2, 2, m, n}, 0}, {a, b}, inner + 4, 4 * inner, 1,
          [&](Ops& ops, const Tensor& y, const auto& v) { ops.matmul(y, v[0], v[1], transpose); });
    }
  }
}

TEST_CASE("emu-check: lookups and rotary") {
  const std::string device = check_device();
  const DType dtype = any_storage();
  for (const int64_t width : {2, 6, 8, 64, 80}) {
    INFO("width " << width);
    const Operand weight{dtype, {60, width}, 1}, ids{DType::i64, {2, 3}, 2};
    require_agreement(
        device, {dtype, {2, 3, width}, 0}, {ids, weight}, 4, 4, 1,
        [](Ops& ops, const Tensor& y, const auto& v) { ops.embedding(y, v[0], v[1], 3.5); });
    const int64_t rotated = width >= 8 ? width / 2 : width;
    const Operand x{dtype, {2, 3, 5, width}, 3, width % 8}, cos{dtype, {2, 5, rotated}, 4};
    const Operand sin{dtype, {2, 5, rotated}, 5};
    for (const RotaryStyle style : {RotaryStyle::half, RotaryStyle::interleaved}) {
      require_agreement(device, {dtype, {2, 3, 5, width}, 0}, {x, cos, sin}, 4, 32, 3,
                        [&](Ops& ops, const Tensor& y, const auto& v) {
                          ops.rotary(y, v[0], v[1], v[2], style);
                        });
    }
    require_agreement(device, {dtype, {2, 6, 5, width}, 0}, {x}, 0, 0, 0,
                      [](Ops& ops, const Tensor& y, const auto& v) { ops.repeat_heads(y, v[0]); });
    const Operand scores{dtype, {2, 3, 5, width}, 6, 1}, mask{dtype, {2, 1, 5, width}, 7};
    require_agreement(
        device, {dtype, {2, 3, 5, width}, 0}, {scores, mask}, 4, 8, 1,
        [](Ops& ops, const Tensor& y, const auto& v) { ops.masked_add(y, v[0], v[1]); });
  }
}

TEST_CASE("emu-check: rotary tables") {
  const std::string device = check_device();
  const int64_t half = GENERATE(1, 3, 32);
  for (const bool sine : {false, true}) {
    const auto gpu = open_device(device);
    const Tensor positions = make(*gpu, {DType::i64, {2, 7}, 1});
    const Tensor frequencies = make(*gpu, {DType::f32, {half}, 2});
    const Tensor cos = gpu->allocate(DType::f32, {2, 7, 2 * half});
    const Tensor sin = gpu->allocate(DType::f32, {2, 7, 2 * half});
    gpu->ops().rotary_table(cos, sin, positions, frequencies, 1.25);
    gpu->synchronize();
    const Values y = download(*gpu, sine ? sin : cos), p = download(*gpu, positions);
    const Values f = download(*gpu, frequencies);
    Values exact, bound;
    for (size_t i = 0; i < y.size(); ++i) {
      const size_t row = i / static_cast<size_t>(2 * half), pair = i % static_cast<size_t>(half);
      const double angle = static_cast<float>(p[row]) * static_cast<float>(f[pair]);
      exact.push_back(1.25 * (sine ? std::sin(angle) : std::cos(angle)));
      bound.push_back(8 * kU32);
    }
    require_close(y, exact, bound);
  }
}

}  // namespace
}  // namespace plumb
