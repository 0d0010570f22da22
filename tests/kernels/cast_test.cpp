// cast between all dtypes: what torch 2.13 gives on x86 where no number is near, and every code of
// the small formats.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/catch.h"
#include "tests/kernels/support.h"

namespace plumb {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Values cast(Device& device, DType from, const Values& x, DType to) {
  const Shape shape{std::ssize(x)};
  const Guarded in = holding(device, from, shape, x);
  Guarded out(device, to, shape);
  return run(device, {&out}, [&] { device.ops().cast(out, in); })[0];
}

bool same(const Values& a, const Values& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}

TEST_CASE("cast: floats lose what is behind the point, and beyond the range as torch has it") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const Values x = {300, -1.5, -300, 200, 3e9, -3e9, 1e10, 1e19, kInfinity, -kInfinity, kNaN};
  constexpr double k31 = -0x1p31, k63 = -0x1p63;
  const auto is = [&](DType from, DType to, const Values& expected) {
    INFO(name_of(from) << " to " << name_of(to));
    CHECK(same(cast(*device, from, x, to), expected));
  };
  for (const DType from : {DType::f64, DType::f32}) {
    is(from, DType::i64, {300, -1, -300, 200, 3e9, -3e9, 1e10, k63, k63, k63, k63});
    is(from, DType::i32, {300, -1, -300, 200, k31, k31, k31, k31, k31, k31, k31});
    is(from, DType::u32,
       {300, 0x1p32 - 1, 0x1p32 - 300, 200, 3e9, 0x1p32 - 3e9, 1410065408, 0, 0, 0, 0});
    is(from, DType::i8, {44, -1, -44, -56, 0, 0, 0, 0, 0, 0, 0});
    is(from, DType::u8, {44, 255, 212, 200, 0, 0, 0, 0, 0, 0, 0});
    is(from, DType::boolean, Values(11, 1.0));
  }
  is(DType::f16, DType::i64, {300, -1, -300, 200, k63, k63, k63, k63, k63, k63, k63});
  is(DType::f8_e5m2, DType::i32, {320, -1, -320, 192, k31, k31, k31, k31, k31, k31, k31});
  is(DType::bf16, DType::i64,
     {300, -1, -300, 200, 3003121664, -3003121664, 9999220736, k63, k63, k63, k63});
  // Of a float64 beyond i32 u8 has the last bits, i8 has not.
  CHECK(cast(*device, DType::f64, {5e9 + 7}, DType::u8) == Values{7});
  CHECK(cast(*device, DType::f64, {5e9 + 7}, DType::i8) == Values{0});
  CHECK(cast(*device, DType::f64, {-0x1p31 - 0.5, 0x1p31 - 0.5}, DType::i32) ==
        Values{-0x1p31, 0x1p31 - 1});
  CHECK(cast(*device, DType::f32, {-0.0, 0, 1e-30, kNaN}, DType::boolean) == Values{0, 0, 1, 1});
}

TEST_CASE("cast: whole numbers keep their last bits, and are rounded once or twice") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const Values x = {-1, 200, 300, -129, 65536, 2147483647, 4294967297, -4294967300};
  CHECK(cast(*device, DType::i64, x, DType::i32) ==
        Values{-1, 200, 300, -129, 65536, 2147483647, 1, -4});
  CHECK(cast(*device, DType::i64, x, DType::u32) ==
        Values{0x1p32 - 1, 200, 300, 0x1p32 - 129, 65536, 2147483647, 1, 0x1p32 - 4});
  CHECK(cast(*device, DType::u32, {4294967295, 16777217}, DType::f32) == Values{0x1p32, 16777216});
  CHECK(cast(*device, DType::u32, {4294967295}, DType::i64) == Values{4294967295});
  CHECK(cast(*device, DType::i64, x, DType::i8) == Values{-1, -56, 44, 127, 0, -1, 1, -4});
  CHECK(cast(*device, DType::i64, x, DType::u8) == Values{255, 200, 44, 127, 0, 255, 1, 252});
  CHECK(cast(*device, DType::i32, {0, -1, 256}, DType::boolean) == Values{0, 1, 1});
  CHECK(cast(*device, DType::u8, {0, 200}, DType::i8) == Values{0, -56});
  CHECK(cast(*device, DType::i8, {-56}, DType::u8) == Values{200});
  CHECK(cast(*device, DType::boolean, {0, 1}, DType::bf16) == Values{0, 1});
  CHECK(cast(*device, DType::i32, {16777217, 2147483647}, DType::f32) ==
        Values{16777216, 2147483648});
  CHECK(cast(*device, DType::i32, {16777217, -2147483648}, DType::f64) ==
        Values{16777217, -2147483648});
  // Above the middle of 2^25 and the next bf16, by what float32 has no bit for.
  const double middle = 0x1p25 + 0x1p17;
  for (const DType from : {DType::f64, DType::i64, DType::i32}) {
    CHECK(cast(*device, from, {middle + 1}, DType::bf16) == Values{0x1p25});
    CHECK(cast(*device, from, {middle + 4}, DType::bf16) == Values{0x1p25 + 0x1p18});
  }
}

TEST_CASE("cast: every code of a small format to every dtype, and what is between them") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const DType small = GENERATE(DType::f8_e4m3, DType::f8_e5m2, DType::f16, DType::bf16);
  const int codes = size_of(small) == 1 ? 256 : 65536;
  Values x;
  for (int i = 0; i < codes; ++i) {
    const auto code = static_cast<uint16_t>(i);
    x.push_back(load(small, &code));
  }
  for (const DType to :
       {DType::f64, DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2}) {
    INFO(name_of(small) << " to " << name_of(to));
    Values expected;
    for (const double v : x) expected.push_back(round_to(to, v));
    CHECK(same(cast(*device, small, x, to), expected));
  }
  // Middles of neighbours, and a little beyond, in float32.
  Values between, expected;
  for (size_t i = 0; i + 1 < x.size() && codes == 256; ++i) {
    const double middle = (x[i] + x[i + 1]) / 2;
    if (!std::isfinite(middle)) continue;
    for (const double v : {middle, middle * (1 + 0x1p-20), middle * (1 - 0x1p-20)}) {
      between.push_back(v);
      expected.push_back(round_to(small, v));
    }
  }
  for (const double v : {464.0, 465.0, 480.0, 61439.0, 61440.0, 1e9, 1e-9}) {
    between.push_back(-v);
    expected.push_back(round_to(small, -v));
  }
  CHECK(same(cast(*device, DType::f32, between, small), expected));
}

}  // namespace
}  // namespace plumb
