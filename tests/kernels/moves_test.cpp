// Lookups, sums by ids, the largest of rows and random numbers at their edges: ids of every dtype
// and outside, the order of sums, ties, known answers. What moves give in general is held to torch
// (test_op_recordings.py).
#include <cmath>
#include <limits>

#include "kernels/core/error.h"
#include "kernels/ops/counter.h"
#include "tests/catch.h"
#include "tests/kernels/support.h"

namespace plumb {
namespace {

using Catch::Contains;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST_CASE("ids of every dtype say the same") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const DType dtype = GENERATE(DType::i64, DType::i32, DType::u32, DType::u8);
  const Guarded x = holding(*device, DType::f32, {2, 3}, {1, 2, 3, 4, 5, 6});
  const Guarded ids = holding(*device, dtype, {4}, {2, 0, 0, 1});
  const Guarded each = holding(*device, dtype, {2, 2}, {1, 0, 0, 1});
  Guarded out(*device, DType::f32, {2, 4}), few(*device, DType::f32, {2, 2});
  Guarded rows(*device, DType::f32, {2, 2, 3}), sums(*device, DType::f32, {2, 3});
  Ops& ops = device->ops();
  const auto of = [&](Guarded& to, auto op) { return run(*device, {&to}, op)[0]; };
  CHECK(of(out, [&] { ops.index_select(out, x, ids, 1); }) == Values{3, 1, 1, 2, 6, 4, 4, 5});
  CHECK(of(few, [&] { ops.gather(few, x, each, 1); }) == Values{2, 1, 4, 5});
  CHECK(of(few, [&] { ops.gather(few, x, each, 0); }) == Values{4, 2, 1, 5});
  CHECK(of(rows, [&] { ops.embedding(rows, each, x); }) ==
        Values{4, 5, 6, 1, 2, 3, 1, 2, 3, 4, 5, 6});
  CHECK(of(sums, [&] { ops.index_add(sums, x, ids, out, 1); }) ==
        Values{1 + 1 + 1, 2 + 2, 3 + 3, 4 + 4 + 4, 5 + 5, 6 + 6});
  CHECK(of(sums, [&] { ops.scatter_add(sums, x, each, few, 0); }) ==
        Values{1 + 1, 2 + 2, 3, 4 + 4, 5 + 5, 6});
}

TEST_CASE("an id outside is an error with the op, the id, its place and the extent") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const int64_t wrong = GENERATE(int64_t{3}, int64_t{-1}, INT64_MAX, INT64_MIN);
  const Guarded x = holding(*device, DType::f32, {2, 3}, Values(6, 1.0));
  const Guarded ids(*device, DType::i64, {4}), each(*device, DType::i64, {2, 2});
  Guarded out(*device, DType::f32, {2, 4}), few(*device, DType::f32, {2, 2});
  Guarded sums(*device, DType::f32, {2, 3}), rows(*device, DType::f32, {4, 3});
  const int64_t id[4] = {0, 1, wrong, 2};
  device->upload(ids, id);
  device->upload(each, id);
  Ops& ops = device->ops();
  const auto refused = [&](const std::string& op, int extent, const auto& call) {
    INFO(op);
    const auto whole = [&] {
      call();
      device->synchronize();
    };
    REQUIRE_THROWS_WITH(
        whole(), text('[', op, "] id ", wrong, " at place 2 of ids is outside [0, ", extent, ')'));
    REQUIRE_NOTHROW(device->synchronize());
  };
  refused("index_select", 3, [&] { ops.index_select(out, x, ids, 1); });
  refused("gather", 3, [&] { ops.gather(few, x, each, 1); });
  refused("index_add", 3, [&] { ops.index_add(sums, x, ids, out, 1); });
  refused("scatter_add", 3, [&] { ops.scatter_add(sums, x, each, few, 1); });
  const Guarded table = holding(*device, DType::f32, {3, 3}, Values(9, 1.0));
  refused("embedding", 3, [&] { ops.embedding(rows, ids, table); });
}

TEST_CASE("sums by ids have the order of the ids") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const bool in_place = GENERATE(false, true);
  const Guarded ids = holding(*device, DType::i64, {5}, {1, 0, 1, 1, 0});
  const Guarded source = holding(*device, DType::f32, {5}, {0x1p24, 1, 1, -0x1p24, 2});
  Guarded x(*device, DType::f32, {3}), out(*device, DType::f32, {3});
  Guarded& to = in_place ? x : out;
  const Values y = run(*device, {&to}, [&] {
    x.set({1, 1, 7});
    device->ops().index_add(to, x, ids, source, 0);
  })[0];
  // 1 + 2^24 is 2^24, and so is 2^24 + 1; in any other order more is left.
  const bool rounds = device->name() != "oracle";
  CHECK(y == Values{4, rounds ? 0.0 : 2.0, 7});
}

TEST_CASE("top_k: of equal ones the first, NaN is the largest, the zeros are equal") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const Values row = {0, 2, kNaN, -0.0, -kInfinity, 2, kInfinity, -1, kNaN, 0};
  const Guarded x = holding(*device, dtype, {1, 10}, row);
  Guarded values(*device, dtype, {1, 10}), ids(*device, DType::i64, {1, 10});
  const auto places = [&](bool largest) {
    return run(*device, {&values, &ids}, [&] { device->ops().top_k(values, ids, x, largest); })[1];
  };
  CHECK(places(true) == Values{2, 8, 6, 1, 5, 0, 3, 9, 7, 4});
  CHECK(std::signbit(values.get()[6]));
  CHECK(places(false) == Values{4, 7, 0, 3, 9, 1, 5, 6, 2, 8});
}

TEST_CASE("top_k: of many equal ones, of all, of none") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const int64_t width = 3000;
  Values row(static_cast<size_t>(width), 1.0);
  row[2999] = 2;
  const Guarded x = holding(*device, DType::bf16, {1, width}, row);
  for (const int64_t k : {int64_t{0}, int64_t{1}, int64_t{700}, width}) {
    Guarded values(*device, DType::bf16, {1, k}), ids(*device, DType::i64, {1, k});
    const Values y =
        run(*device, {&values, &ids}, [&] { device->ops().top_k(values, ids, x, true); })[1];
    Values expected;
    for (int64_t i = 0; i < k; ++i) expected.push_back(static_cast<double>(i == 0 ? 2999 : i - 1));
    CHECK(y == expected);
  }
  Guarded more(*device, DType::bf16, {1, width + 1}), ids(*device, DType::i64, {1, width + 1});
  CHECK_THROWS_WITH(device->ops().top_k(more, ids, x, true), Contains("more than the 3000"));
}

TEST_CASE("Philox4x32-10 gives the answers that its authors published") {
  const auto check = [](counter::Words c, uint64_t key, counter::Words expected) {
    const counter::Words found = counter::philox(c, key);
    for (int i = 0; i < 4; ++i) CHECK(found.at[i] == expected.at[i]);
  };
  const uint32_t ones = 0xffffffff;
  check({{0, 0, 0, 0}}, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  check({{ones, ones, ones, ones}}, ~uint64_t{0},
        {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  check({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0x299f31d0a4093822,
        {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST_CASE("random numbers are those of their place, the same on every device") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const DType dtype = GENERATE(DType::f64, DType::f32, DType::f16, DType::bf16);
  const Layout layout = GENERATE(Layout::contiguous, Layout::padded, Layout::exchanged);
  const RandomStream stream{0x123456789abcdef, (int64_t{1} << 34) - 5};
  Guarded out(*device, dtype, {2, 3, 50}, layout);
  const int bits = info(dtype).significand_bits;
  const Values drawn = run(*device, {&out}, [&] { device->ops().uniform(out, stream); })[0];
  const Values bells = run(*device, {&out}, [&] { device->ops().normal(out, stream); })[0];
  for (int64_t i = 0; i < 300; ++i) {
    const auto at = static_cast<size_t>(i);
    const int64_t number = stream.offset + i;
    REQUIRE(drawn[at] == counter::uniform(stream.seed, number, bits));
    REQUIRE((drawn[at] >= 0 && drawn[at] < 1));
    const counter::Words words = counter::block(stream.seed, number / 4);
    const int pair = number % 4 / 2 * 2;
    const double radius = std::sqrt(-2 * std::log((words.at[pair] + 1.0) * 0x1p-32));
    const double angle = words.at[pair + 1] * 0x1p-32 * 2 * M_PI;
    const double exact = radius * (number % 2 ? std::sin(angle) : std::cos(angle));
    REQUIRE(std::fabs(bells[at] - exact) <=
            std::fabs(exact) * unit_roundoff(dtype) + 8e-15 + smallest_step(dtype));
    const double again =
        counter::normal(stream.seed, number, [](double x) { return std::sqrt(x); });
    REQUIRE(bells[at] ==
            (dtype == DType::f64 ? again : round_to(dtype, static_cast<float>(again))));
  }
}

TEST_CASE("generated numbers are random in every bit, and normal") {
  double mean = 0, square = 0, fourth = 0;
  constexpr int kCount = 40000;
  std::array<int, 24> ones{};
  for (int64_t i = 0; i < kCount; ++i) {
    const double z = counter::normal(7, i, [](double x) { return std::sqrt(x); });
    mean += z / kCount;
    square += z * z / kCount;
    fourth += z * z * z * z / kCount;
    const auto word = static_cast<uint32_t>(counter::uniform(7, i, 24) * 0x1p24);
    for (size_t bit = 0; bit < ones.size(); ++bit) ones[bit] += static_cast<int>(word >> bit & 1);
  }
  CHECK(std::fabs(mean) < 5 / std::sqrt(kCount));
  CHECK(std::fabs(square - 1) < 5 * std::sqrt(2.0 / kCount));
  CHECK(std::fabs(fourth - 3) < 5 * std::sqrt(96.0 / kCount));
  for (const int count : ones) CHECK(std::abs(count - kCount / 2) < 5 * std::sqrt(kCount / 4.0));
}

TEST_CASE("filled and counted elements of every dtype") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const auto dtype = static_cast<DType>(GENERATE(range(0, kDTypes)));
  Guarded out(*device, dtype, {2, 3});
  const Values line = run(*device, {&out}, [&] { device->ops().arange(out, 0.5, 1.25); })[0];
  const bool whole = !is_floating(dtype);
  for (int i = 0; i < 6; ++i) {
    const double x = 0.5 + 1.25 * i;
    const double expected = dtype == DType::boolean ? 1
                            : whole                 ? std::trunc(x)
                                                    : round_to(dtype, x);
    CHECK(line[static_cast<size_t>(i)] == expected);
  }
  const double most = dtype == DType::boolean ? 1 : whole ? 100 : kInfinity;
  const Values full = run(*device, {&out}, [&] { device->ops().fill(out, most); })[0];
  if (dtype == DType::f8_e4m3) CHECK(std::isnan(full[5]));
  else CHECK(full == Values(6, most));
}

TEST_CASE("moves refuse shapes and axes that do not go together") {
  const auto device = open_test_device("cpu");
  Ops& ops = device->ops();
  const auto of = [&](const Shape& shape, DType dtype = DType::f32) {
    return device->allocate(dtype, shape);
  };
  const auto ids = [&](const Shape& shape) { return of(shape, DType::i64); };
  const Tensor x = of({2, 3});
  const auto refused = [](const std::string& words, const std::function<void()>& op) {
    CHECK_THROWS_WITH(op(), words);
  };
  refused("[index_select] axis is 2, x has shape [2, 3]",
          [&] { ops.index_select(x, x, ids({3}), 2); });
  refused("[index_select] out has shape [2, 3], expected [2, 4]",
          [&] { ops.index_select(x, x, ids({4}), 1); });
  refused("[index_select] ids is f32, expected i64, i32, u32 or u8",
          [&] { ops.index_select(x, x, of({3}), 1); });
  refused("[gather] ids has shape [3, 3], beyond that of x, [2, 3]", [&] {
    ops.gather(of({3, 3}), x, ids({3, 3}), 1);
  });
  refused("[index_add] source has shape [2, 3], expected [2, 4]",
          [&] { ops.index_add(x, x, ids({4}), x, 1); });
  refused("[scatter_add] ids has shape [2, 4], beyond that of source, [2, 3]", [&] {
    ops.scatter_add(x, x, ids({2, 4}), x, 1);
  });
  refused("[concat] b has shape [2, 3], a [3, 3]: they may differ along axis 1 alone", [&] {
    ops.concat(x, of({3, 3}), x, 1);
  });
  refused("[concat] out has shape [2, 3], expected [2, 6]", [&] { ops.concat(x, x, x, 1); });
  refused("[permute] axis 1 of out is axis 0 of x, whose shape is [2, 3]: each must be there once",
          [&] { ops.permute(x, x, {}); });
  refused("[permute] out has shape [2, 3], expected [3, 2]", [&] { ops.permute(x, x, {{1, 0}}); });
  refused("[pad] out has shape [3], x [2, 3]", [&] { ops.pad(of({3}), x, {}, 0); });
  refused("[flip] axes reach beyond the last of x, whose shape is [2, 3]",
          [&] { ops.flip(x, x, {2}); });
  refused("[roll] out has shape [3, 3], expected [2, 3]", [&] { ops.roll(of({3, 3}), x, {}); });
  refused("[uniform] out is i64, expected a float dtype", [&] { ops.uniform(ids({2}), {}); });
  refused("[uniform] offset is -1, must not be negative", [&] { ops.uniform(x, {0, -1}); });
}

}  // namespace
}  // namespace plumb
