// Quantised values against the decoders of plumbline.quantised and against torch, bit for bit, in
// every layout; values that are typed here; wrong readings; what is refused.
#include <cmath>
#include <limits>

#include "kernels/core/error.h"
#include "tests/kernels/support.h"

namespace plumb {
namespace {

// As the tables have it: no dtype, no tensor.
struct Stored {
  const char* dtype = nullptr;
  std::vector<int64_t> shape = {};
  const char* hex = "";
};
struct WeightCase {
  const char* layout;
  OfAxes group;
  Stored out, codes, scales, zeros, global_scale, group_index;
};
const std::vector<WeightCase>& weight_cases() {
  static const std::vector<WeightCase> rows = {
#include "tests/kernels/quantised_weights.inc"
  };
  return rows;
}
struct QuantiserCase {
  ScaleRule rule;
  OfAxes group;
  double divisor;
  Stored x, codes, scales, zeros;
};
const std::vector<QuantiserCase>& quantiser_cases() {
  static const std::vector<QuantiserCase> rows = {
#include "tests/kernels/quantisers.inc"
  };
  return rows;
}

Tensor host_of(const Stored& stored) {
  if (!stored.dtype) return {};
  const Tensor out = host_tensor(*dtype_from_name(stored.dtype), Shape(stored.shape));
  for (int64_t i = 0; i < out.bytes(); ++i) {
    const std::string two(stored.hex + 2 * i, 2);
    out.data<uint8_t>()[i] = static_cast<uint8_t>(std::stoi(two, nullptr, 16));
  }
  return out;
}

// On a device; undefined stays so.
class Placed {
 public:
  Placed(Device& device, const Tensor& host, Layout layout = Layout::contiguous) {
    if (!host.defined()) return;
    laid_out_ = std::make_shared<Guarded>(device, host.dtype(), host.shape(), layout);
    laid_out_->put(host.raw());
  }
  Tensor tensor() const { return laid_out_ ? laid_out_->tensor() : Tensor(); }

 private:
  std::shared_ptr<Guarded> laid_out_;
};

// Bits, but that NaN is NaN.
void require_equal(const std::vector<uint8_t>& bytes, const Tensor& expected) {
  const int64_t size = size_of(expected.dtype());
  for (int64_t i = 0; i < expected.numel(); ++i) {
    const uint8_t* got = bytes.data() + i * size;
    const uint8_t* want = expected.data<uint8_t>() + i * size;
    const double y = load(expected.dtype(), got), e = load(expected.dtype(), want);
    INFO("element " << i << " is " << y << ", expected " << e);
    if (is_floating(expected.dtype()) && std::isnan(y) && std::isnan(e)) continue;
    REQUIRE(std::equal(got, got + size, want));
  }
}
bool are_equal(const std::vector<uint8_t>& bytes, const Tensor& expected) {
  return std::equal(bytes.begin(), bytes.end(), expected.data<uint8_t>());
}

struct Operands {
  std::vector<Tensor> hosts;  // codes, scales, zeros, global_scale, group_index
  QuantisedParams params;
};
Operands operands_of(const WeightCase& row) {
  return {{host_of(row.codes), host_of(row.scales), host_of(row.zeros), host_of(row.global_scale),
           host_of(row.group_index)},
          {*layout_from_name(row.layout), row.group}};
}

std::vector<uint8_t> decoded(Device& device, const Operands& of, const Shape& shape, DType dtype,
                             Layout layout = Layout::contiguous) {
  std::vector<Placed> placed;
  for (const Tensor& host : of.hosts) placed.emplace_back(device, host, layout);
  Guarded out(device, dtype, shape, layout);
  device.ops().dequantize(out, placed[0].tensor(), placed[1].tensor(), placed[2].tensor(),
                          placed[3].tensor(), placed[4].tensor(), of.params);
  device.synchronize();
  out.require_guards();
  return out.bytes();
}

TEST_CASE("dequantize has the bits of plumbline.quantised, whatever the layout") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const Layout layout = GENERATE(Layout::contiguous, Layout::padded);
  for (const WeightCase& row : weight_cases()) {
    INFO(row.layout << " in groups of " << row.group[0] << " x " << row.group[1]);
    const Tensor out = host_of(row.out);
    require_equal(decoded(*device, operands_of(row), out.shape(), DType::f32, layout), out);
  }
}

// Codes of i8 and scales whose product is next to the middle of two 16-bit numbers, where float32
// cannot tell: rounded to it first, another one is the nearest.
std::pair<Values, Values> hard_to_round(DType dtype) {
  std::pair<Values, Values> out;
  uint32_t bits = 0;
  while (out.first.size() < 5) {
    bits += 2654435769u;  // 2^32 over the golden ratio
    const double scale = 0.5 + (bits >> 9) * 0x1p-24, code = 3 + bits % 125;
    const double exact = scale * code, wide = round_to(DType::f32, exact);
    if (wide == exact || round_to(dtype, wide) == round_to(dtype, exact)) continue;
    out.first.push_back(code);
    out.second.push_back(scale);
  }
  return out;
}

TEST_CASE("dequantize rounds once to 16 bits") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const DType dtype = GENERATE(DType::f16, DType::bf16);
  const auto [codes, scales] = hard_to_round(dtype);
  const auto count = static_cast<int64_t>(codes.size());
  Guarded out(*device, dtype, {count, 1});
  device->ops().dequantize(out, holding(*device, DType::i8, {count, 1}, codes),
                           holding(*device, DType::f32, {count, 1}, scales), {}, {}, {},
                           {QuantLayout::int8, {}});
  device->synchronize();
  Values exact;
  for (size_t i = 0; i < codes.size(); ++i) {
    exact.push_back(round_to(dtype, codes[i] * scales[i]));
  }
  CHECK(out.get() == exact);
}

TEST_CASE("dequantize, typed here") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const auto of = [&](DType dtype, const Shape& shape, const Values& values) {
    return std::make_shared<Guarded>(holding(*device, dtype, shape, values));
  };
  const auto values = [&](QuantLayout layout, const Shape& shape, const auto& codes,
                          const auto& scales, const auto& zeros) {
    Guarded out(*device, DType::f32, shape);
    device->ops().dequantize(out, *codes, *scales, zeros ? zeros->tensor() : Tensor(), {}, {},
                             {layout, {}});
    device->synchronize();
    return out.get();
  };
  const std::shared_ptr<Guarded> none;
  const auto half = of(DType::f32, {1}, {0.5});
  const auto word = of(DType::i32, {1, 1}, {0x76543210});
  CHECK(values(QuantLayout::int4, {1, 8}, word, half, none) ==
        Values{-4, -3.5, -3, -2.5, -2, -1.5, -1, -0.5});
  // Zero 7 is stored, and is 8.
  const auto column = of(DType::i32, {1, 1}, {0x76543210}), seven = of(DType::i32, {1, 1}, {7});
  const auto scale = of(DType::f16, {1, 1}, {0.5});
  CHECK(values(QuantLayout::gptq, {1, 8}, column, scale, seven) ==
        Values{-4, -3.5, -3, -2.5, -2, -1.5, -1, -0.5});
  CHECK(values(QuantLayout::gptq_v2, {1, 8}, column, scale, seven) ==
        Values{-3.5, -3, -2.5, -2, -1.5, -1, -0.5, 0});
  // AutoAWQ: the codes of columns 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits on.
  const auto zero = of(DType::i32, {1, 1}, {0});
  const auto eight = of(DType::f16, {1, 8}, Values(8, 1.0));
  CHECK(values(QuantLayout::awq, {8, 1}, word, eight, zero) == Values{0, 4, 1, 5, 2, 6, 3, 7});
  // 2^(128 - 127); the lower half of a byte first.
  const auto e2m1 = of(DType::u8, {1, 2}, {0x21, 0xf8}), two = of(DType::u8, {1, 1}, {128});
  CHECK(values(QuantLayout::mxfp4, {1, 4}, e2m1, two, none) == Values{1, 2, -0.0, -12});
  // The upper half first.
  const auto nf4 = of(DType::u8, {1, 1}, {0x0f}), absmax = of(DType::f32, {1}, {3});
  CHECK(values(QuantLayout::nf4, {1, 2}, nf4, absmax, none) == Values{-3, 3});
  const auto e4m3 = of(DType::f8_e4m3, {2, 2}, {1, 2, 448, -0.5});
  const auto of_rows = of(DType::bf16, {2}, {2, 4});
  CHECK(values(QuantLayout::fp8, {2, 2}, e4m3, of_rows, none) == Values{2, 4, 1792, -2});
}

TEST_CASE("dequantize by a wrong reading has other bits") {
  const auto device = open_test_device("cpu");
  const auto differs = [&](const WeightCase& row, const auto& change) {
    Operands of = operands_of(row);
    change(of);
    const Tensor out = host_of(row.out);
    return !are_equal(decoded(*device, of, out.shape(), DType::f32), out);
  };
  int nibbles = 0, zeros = 0, groups = 0, versions = 0, blocks = 0, globals = 0;
  for (const WeightCase& row : weight_cases()) {
    INFO(row.layout);
    const std::string name = row.layout;
    const LayoutRow& layout = row_of(*layout_from_name(name));
    if (layout.codes == CodeType::words || layout.codes == CodeType::bytes) {
      ++nibbles;
      CHECK(differs(row, [](Operands& of) {
        for (int64_t i = 0; i < of.hosts[0].bytes(); ++i) {
          uint8_t& byte = of.hosts[0].data<uint8_t>()[i];
          byte = static_cast<uint8_t>(byte << 4 | byte >> 4);
        }
      }));
    }
    if (layout.zeros != ZeroType::none) {
      ++zeros;
      CHECK(differs(row, [](Operands& of) {
        for (int64_t i = 0; i < of.hosts[2].bytes(); ++i) ++of.hosts[2].data<uint8_t>()[i];
      }));
    }
    if (layout.codes != CodeType::blocks) {
      ++groups;
      CHECK(differs(row, [](Operands& of) {  // the scale of the group before
        const Tensor& t = of.hosts[1];
        auto* bytes = t.data<uint8_t>();
        std::rotate(bytes, bytes + size_of(t.dtype()), bytes + t.bytes());
      }));
    }
    if (name == "gptq" || name == "gptq-v2") {
      ++versions;
      CHECK(differs(row, [&](Operands& of) {
        of.params.layout = name == "gptq" ? QuantLayout::gptq_v2 : QuantLayout::gptq;
      }));
    }
    if (name == "fp8" && row.scales.shape == std::vector<int64_t>{2, 2}) {
      ++blocks;
      CHECK(differs(row, [](Operands& of) {  // block scales read by columns
        const Tensor from = of.hosts[1], to = host_tensor(from.dtype(), from.shape());
        for (int64_t i = 0; i < 4; ++i) {
          const auto size = static_cast<size_t>(size_of(from.dtype()));
          std::copy_n(from.data<uint8_t>() + static_cast<size_t>(i % 2 * 2 + i / 2) * size, size,
                      to.data<uint8_t>() + static_cast<size_t>(i) * size);
        }
        of.hosts[1] = to;
      }));
    }
    if (layout.has_global_scale) {
      ++globals;
      CHECK(differs(row, [](Operands& of) { of.hosts[3].data<float>()[0] = 1; }));
    }
  }
  CHECK(nibbles >= 14);
  CHECK(zeros >= 15);
  CHECK(groups >= 25);
  CHECK(versions == 6);
  CHECK(blocks == 2);
  CHECK(globals == 1);
}

TEST_CASE("quantize has the codes, scales and zeros of torch") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const Layout layout = GENERATE(Layout::contiguous, Layout::padded);
  for (const QuantiserCase& row : quantiser_cases()) {
    INFO("rule " << static_cast<int>(row.rule) << " to " << row.codes.dtype << " over "
                 << row.divisor << " in groups of " << row.group[0] << " x " << row.group[1]
                 << " of " << row.x.dtype);
    const Tensor codes = host_of(row.codes), scales = host_of(row.scales),
                 zeros = host_of(row.zeros);
    const Placed x(*device, host_of(row.x), layout);
    Guarded made(*device, codes.dtype(), codes.shape(), layout);
    Guarded made_scales(*device, scales.dtype(), scales.shape(), layout);
    const Placed made_zeros(*device, zeros, layout);
    device->ops().quantize(made, made_scales, made_zeros.tensor(), x.tensor(),
                           {row.rule, row.group, row.divisor});
    device->synchronize();
    made.require_guards();
    made_scales.require_guards();
    require_equal(made_scales.bytes(), scales);
    require_equal(made.bytes(), codes);
  }
}

TEST_CASE("quantize: NaN, infinity, ties and groups of zeros") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const auto made = [&](DType codes, const Values& values, const QuantizeParams& params) {
    const auto x = holding(*device, DType::f32, {1, std::ssize(values)}, values);
    Guarded out(*device, codes, {1, std::ssize(values)});
    Guarded scale(*device, params.rule == ScaleRule::shared_exponent ? DType::u8 : DType::f32,
                  {1, 1});
    device->ops().quantize(out, scale, {}, x, params);
    device->synchronize();
    return std::pair{out.get(), scale.get()[0]};
  };
  const QuantizeParams whole{ScaleRule::symmetric, {}, 127};
  CHECK(made(DType::i8, {127, 0.5, 1.5, 2.5, -0.5, kNaN}, whole) ==
        std::pair{Values{127, 0, 2, 2, 0, 0}, 1.0});
  CHECK(made(DType::i8, {0, -0.0, kNaN}, whole) == std::pair{Values{0, 0, 0}, 0.0});
  // 127.5 / 1: beyond i8, and saturated, as is -127.5 but not its nearest code, -128.
  CHECK(made(DType::i8, {127.5, -127.5}, {ScaleRule::symmetric, {}, 127.5}).first ==
        Values{127, -128});
  // 448 is 1.75 2^8: of a magnitude of 511 the exponent is 8, too, and codes saturate.
  CHECK(made(DType::f8_e4m3, {511, 17, -500}, {ScaleRule::shared_exponent, {}, 1}) ==
        std::pair{Values{448, 16, -448}, 127.0});
}

TEST_CASE("quantised_linear: exact sums of codes, and what follows them") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const auto x = holding(*device, DType::i8, {2, 3}, {1, -2, 3, 127, 127, -128});
  const auto codes = holding(*device, DType::i8, {2, 3}, {1, 1, 1, -128, 2, 127});
  const auto scales = holding(*device, DType::f32, {2, 1}, {0.5, 0.25});
  const auto zeros = holding(*device, DType::i8, {2, 1}, {0, -1});
  const auto x_scales = holding(*device, DType::f32, {2, 1}, {2, 0.125});
  const auto bias = holding(*device, DType::f32, {2}, {1, -1});
  Guarded out(*device, DType::f32, {2, 2});
  device->ops().quantised_linear(out, x, codes, scales, zeros, {}, {}, x_scales, bias,
                                 {QuantLayout::int8_zero, {}});
  device->synchronize();
  // Sums 2 and 126; (-127, 3, 128): 1 (-127) - 2 3 + 3 128 = 251, 127 (-127) + 127 3 - 128 128.
  CHECK(out.get() == Values{2 * 2 * 0.5 + 1, 251 * 2 * 0.25 - 1, 126 * 0.125 * 0.5 + 1,
                            -32132 * 0.125 * 0.25 - 1});
}

TEST_CASE("quantised_linear is linear of dequantize") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  for (const WeightCase& row : weight_cases()) {
    INFO(row.layout);
    const Operands of = operands_of(row);
    const Tensor expected = host_of(row.out);
    const int64_t outputs = expected.dim(0), inner = expected.dim(1), rows = 3;
    const Values x = random_values(DType::f32, rows * inner, 5);
    const Values bias = random_values(DType::f32, outputs, 6);
    std::vector<Placed> placed;
    for (const Tensor& host : of.hosts) placed.emplace_back(*device, host);
    const auto a = holding(*device, DType::f32, {rows, inner}, x);
    const auto b = holding(*device, DType::f32, {outputs}, bias);
    Guarded out(*device, DType::f32, {rows, outputs});
    device->ops().quantised_linear(out, a, placed[0].tensor(), placed[1].tensor(),
                                   placed[2].tensor(), placed[3].tensor(), placed[4].tensor(), {},
                                   b, of.params);
    device->synchronize();
    Values exact, bound;
    for (int64_t i = 0; i < rows * outputs; ++i) {
      const int64_t row_of_x = i / outputs, n = i % outputs;
      double sum = bias[static_cast<size_t>(n)], magnitudes = std::fabs(sum);
      for (int64_t k = 0; k < inner; ++k) {
        const double term = x[static_cast<size_t>(row_of_x * inner + k)] *
                            static_cast<double>(expected.data<float>()[n * inner + k]);
        sum += term;
        magnitudes += std::fabs(term);
      }
      exact.push_back(sum);
      bound.push_back(static_cast<double>(inner + 3) * kU32 * magnitudes);
    }
    const Values y = out.get();
    for (size_t i = 0; i < y.size(); ++i) {
      if (std::isnan(exact[i])) CHECK(std::isnan(y[i]));
      else CHECK(std::fabs(y[i] - exact[i]) <= bound[i]);
    }
  }
}

// On a GPU a kernel of its own reads the words.
TEST_CASE("quantised_linear of one row and words") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const QuantLayout layout = GENERATE(QuantLayout::int4, QuantLayout::int4_zero);
  const int64_t outputs = GENERATE(1, 7), inner = GENERATE(32, 96, 2080);
  const bool has_zeros = layout == QuantLayout::int4_zero;
  const Tensor words = host_tensor(DType::i32, {outputs, inner / 8});
  const Tensor zero_words = host_tensor(DType::i32, {1, inner / 32});
  for (const Tensor& t : {words, zero_words}) {
    for (int64_t i = 0; i < t.bytes(); ++i) {
      t.data<uint8_t>()[i] = static_cast<uint8_t>((i * 97 + 13) % 251);
    }
  }
  Values of_groups;
  for (int64_t i = 0; i < outputs * inner / 32; ++i) {
    of_groups.push_back(0.01 + static_cast<double>(i % 9) / 64);
  }
  const Values x = random_values(dtype, inner, 3), bias = random_values(dtype, outputs, 4);
  const auto scales = holding(*device, DType::f32, {outputs, inner / 32}, of_groups);
  const Placed codes(*device, words), zeros(*device, has_zeros ? zero_words : Tensor());
  const auto a = holding(*device, dtype, {1, inner}, x),
             b = holding(*device, dtype, {outputs}, bias);
  Guarded out(*device, dtype, {1, outputs});
  device->ops().quantised_linear(out, a, codes.tensor(), scales, zeros.tensor(), {}, {}, {}, b,
                                 {layout, {}});
  device->synchronize();
  Values exact, bound;
  const auto nibble = [](const Tensor& t, int64_t word, int64_t i) {
    return static_cast<int>(t.data<uint32_t>()[word] >> 4 * i & 15);
  };
  for (int64_t n = 0; n < outputs; ++n) {
    double sum = bias[static_cast<size_t>(n)], magnitudes = std::fabs(sum);
    for (int64_t k = 0; k < inner; ++k) {
      const int zero = has_zeros ? nibble(zero_words, k / 32, n) : 8;
      const int code = nibble(words, n * (inner / 8) + k / 8, k % 8);
      const auto scale =
          static_cast<float>(of_groups[static_cast<size_t>(n * (inner / 32) + k / 32)]);
      const double term = x[static_cast<size_t>(k)] * (code - zero) * static_cast<double>(scale);
      sum += term;
      magnitudes += std::fabs(term);
    }
    exact.push_back(sum);
    bound.push_back(rounding_unit(dtype) * std::fabs(sum) +
                    static_cast<double>(inner + 3) * kU32 * magnitudes);
  }
  require_close(out.get(), exact, bound);
}

TEST_CASE("what does not fit a layout is named") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const auto at = [&](DType dtype, const Shape& shape) { return device->allocate(dtype, shape); };
  const Tensor out = at(DType::f32, {4, 64}), scales = at(DType::f32, {4, 2});
  const auto refused = [&](const Tensor& codes, const Tensor& of_groups, const Tensor& zeros,
                           const QuantisedParams& params) -> std::string {
    try {
      device->ops().dequantize(out, codes, of_groups, zeros, {}, {}, params);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  const QuantisedParams int4{QuantLayout::int4, {}};
  CHECK(refused(at(DType::i32, {4, 7}), scales, {}, int4) ==
        "[dequantize] codes has shape [4, 7], expected [4, 8] of a weight [4, 64] of int4");
  CHECK(refused(at(DType::u8, {4, 8}), scales, {}, int4) ==
        "[dequantize] codes is u8, expected i32 of int4");
  CHECK(refused(at(DType::i32, {4, 8}), at(DType::f32, {4, 3}), {}, int4) ==
        "[dequantize] scales have 3 groups along axis 1 of a weight [4, 64] of int4: say how many "
        "rows and columns share a scale");
  CHECK(refused(at(DType::i32, {4, 8}), scales, at(DType::i32, {1, 2}), int4) ==
        "[dequantize] zeros is given, int4 has none");
  CHECK(refused(at(DType::i32, {4, 8}), scales, {}, {QuantLayout::int4_zero, {}}) ==
        "[dequantize] zeros is missing, int4-zero has them");
  CHECK(refused(at(DType::u8, {4, 36}), {}, {}, {QuantLayout::q4_0, {}}).empty());
  CHECK(refused(at(DType::u8, {4, 144}), {}, {}, {QuantLayout::q4_k, {}}) ==
        "[dequantize] a row has 64 codes, blocks of q4_k have 256");
  // An unknown group: on a GPU from the next synchronize().
  const auto index = holding(*device, DType::i32, {64}, Values(64, 2));
  CHECK_THROWS_AS(
      [&] {
        device->ops().dequantize(out, at(DType::i32, {8, 4}), at(DType::f16, {2, 4}),
                                 at(DType::i32, {2, 1}), {}, index, {QuantLayout::gptq, {}});
        device->synchronize();
      }(),
      UsageError);
}

TEST_CASE("quantised_sdpa is sdpa of scaled codes") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const DType dtype = GENERATE(DType::i8, DType::f8_e4m3);
  const Shape of_q{1, 2, 3, 8}, of_k{1, 1, 5, 8}, of_scales{1, 1, 5, 1};
  const auto q = holding(*device, DType::f32, of_q, random_values(DType::f32, 48, 1));
  Values k = random_values(DType::bf16, 40, 2, 30), v = random_values(DType::bf16, 40, 3, 30);
  for (Values* codes : {&k, &v}) {
    for (double& code : *codes) code = round_to(DType::f8_e4m3, std::trunc(code));
  }
  const Values k_scales{0.01, 0.02, 0.03, 0.01, 0.015}, v_scales{0.5, 0.25, 1, 2, 0.125};
  const auto scaled = [](const Values& codes, const Values& scales) {
    Values out;
    for (size_t i = 0; i < codes.size(); ++i) {
      out.push_back(static_cast<float>(codes[i]) * static_cast<float>(scales[i / 8]));
    }
    return out;
  };
  Guarded out(*device, DType::f32, {1, 3, 2, 8}), expected(*device, DType::f32, {1, 3, 2, 8});
  AttentionMask mask;
  mask.causal = true;
  mask.query_offset = 2;
  const SdpaParams params{0.35, {}};
  device->ops().quantised_sdpa(out, q, holding(*device, dtype, of_k, k),
                               holding(*device, dtype, of_k, v),
                               holding(*device, DType::f32, of_scales, k_scales),
                               holding(*device, DType::f32, of_scales, v_scales), mask, params);
  device->ops().sdpa(expected, q, holding(*device, DType::f32, of_k, scaled(k, k_scales)),
                     holding(*device, DType::f32, of_k, scaled(v, v_scales)), mask, params);
  device->synchronize();
  CHECK(out.bytes() == expected.bytes());
}

}  // namespace
}  // namespace plumb
