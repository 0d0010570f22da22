#include "harness/judge/localise.h"

#include "tests/catch.h"
#include "tests/harness/judge_support.h"

namespace plumb::harness {
namespace {

const Shape kShape{2, 16, 4, 32};
const std::vector<std::string> kAxes{"batch", "token", "head", "head_dim"};

// Energy 1 where `inside(batch, token, head, head_dim)`, a millionth of it elsewhere.
template <class Inside>
std::string region(Inside inside, const std::vector<std::string>& axes = kAxes,
                   const std::vector<std::string>& labels = {}) {
  Layout layout = layout_of(kShape, axes);
  layout.labels = labels;
  std::vector<double> energy;
  for (int b = 0; b < 2; ++b) {
    for (int t = 0; t < 16; ++t) {
      for (int h = 0; h < 4; ++h) {
        for (int d = 0; d < 32; ++d) energy.push_back(inside(b, t, h, d) ? 1 : 1e-6);
      }
    }
  }
  const Localisation found = localise(energy, layout, {});
  CHECK(found.share > 0.99);
  return found.region;
}

}  // namespace

TEST_CASE("regions are named by axis", "[localise]") {
  CHECK(region([](int, int, int, int) { return true; }) == "everywhere");
  CHECK(region([](int, int, int h, int) { return h == 3; }) == "head 3");
  CHECK(region([](int b, int, int, int) { return b == 1; }) == "batch 1");
  CHECK(region([](int, int t, int, int) { return t >= 5; }) == "token >= 5");
  CHECK(region([](int, int t, int, int) { return t < 3; }) == "token < 3");
  CHECK(region([](int, int t, int, int) { return t >= 4 && t < 8; }) == "token 4..7");
  CHECK(region([](int, int, int, int d) { return d >= 24; }) == "head_dim 24..31 (last 8)");
  CHECK(region([](int, int, int, int d) { return d < 8; }) == "head_dim 0..7 (first 8)");
  CHECK(region([](int, int, int, int d) { return d % 2 == 1; }) == "odd head_dims");
  CHECK(region([](int, int, int, int d) { return d % 2 == 0; }) == "even head_dims");
  CHECK(region([](int, int t, int, int) { return t % 8 == 7; }) == "token mod 8 = 7");
  CHECK(region([](int, int t, int, int) { return t == 1 || t == 6 || t == 11; }) ==
        "token 1, 6, 11");
  CHECK(region([](int, int, int, int d) { return d == 3 || d == 19; }) ==
        "rotary pair 3 (head_dim 3 and 19)");
  CHECK(region([](int b, int t, int h, int d) { return b == 1 && t >= 5 && h == 3 && d >= 24; }) ==
        "batch 1, token >= 5, head 3, head_dim 24..31 (last 8)");
  CHECK(region([](int, int t, int h, int) { return h == 3 && t == 0; },
               {"batch", "token", "head", "channel"}) == "token 0, head 3");
}

TEST_CASE("axes without names are described by index and size", "[localise]") {
  const std::vector<std::string> nobody(4);
  const auto guessed = [&](auto inside) { return region(inside, kAxes, nobody); };
  CHECK(guessed([](int, int, int h, int) { return h == 3; }) == "axis 2: 3 of 4");
  CHECK(guessed([](int, int t, int, int) { return t >= 5; }) == "axis 1: 5..15 of 16 (last 11)");
  CHECK(guessed([](int, int, int, int d) { return d % 2 == 1; }) == "odd indices of axis 3");
  CHECK(guessed([](int, int, int, int d) { return d == 3 || d == 19; }) == "axis 3 mod 16 = 3");
  CHECK(region([](int, int t, int h, int) { return h == 3 && t >= 5; }, kAxes,
               {"B", "T", "H", "D"}) == "T >= 5, H 3");
  Layout layout = layout_of(kShape, {"batch", "head", "token", "head_dim"});
  layout.labels = nobody;
  const int64_t position = (1 * 4 + 3) * layout.columns + 11 * 32 + 5;
  CHECK(element_name(layout, position) == "[1, 11, 3, 5] of [2, 16, 4, 32]");
  for (const Partition& family : error_families(layout)) {
    const std::string words = group_name(layout, family, family.groups - 1);
    if (family.name == "token") CHECK(words == "[1, :, 3, :] of [2, 16, 4, 32]");
    if (family.name == "token x head") CHECK(words == "[1, 15, 3, :] of [2, 16, 4, 32]");
    if (family.name == "channel") CHECK(words == "[:, 15, :, 31] of [2, 16, 4, 32]");
    if (family.name == "tile") CHECK(words == "[1, 15, :, 24..31] of [2, 16, 4, 32]");
  }
}

TEST_CASE("a hole in a range does not hide the range", "[localise]") {
  CHECK(region([](int, int t, int, int) { return t >= 5 && t != 9; }) == "token >= 5");
}

TEST_CASE("maps hold the energy along every axis", "[localise]") {
  const Layout layout = layout_of({16, 4}, {"token", "head_dim"});
  std::vector<double> energy(64, 0);
  energy[9 * 4 + 3] = 2;
  energy[1 * 4 + 1] = 1;
  const Localisation found = localise(energy, layout, {});
  const auto map = [&](std::string_view name) {
    for (const ErrorMap& m : found.maps) {
      if (m.name == name) return m.energy;
    }
    return std::vector<double>();
  };
  CHECK(map("token")[9] == 2);
  CHECK(map("token mod 8") == std::vector<double>{0, 3, 0, 0, 0, 0, 0, 0});
  CHECK(map("head_dim") == std::vector<double>{0, 1, 0, 2});
  CHECK(map("head_dim pair") == std::vector<double>{0, 3});
  CHECK(map("tile") == std::vector<double>{1, 2});
  CHECK(localise(std::vector<double>(64, 0), layout, {}).region == "nowhere");
  CHECK(localise({}, layout_of({0, 4}, {"token", "channel"}), {}).region == "nowhere");
}

TEST_CASE("the worst failed gate names its place and factor", "[localise]") {
  const Layout layout = layout_of({4}, {"channel"});
  const std::vector<Gate> gates = {
      make_gate("token", 3, 1, {}, "token 1"), make_gate("element", 42, 10, {}, "token 5, head 3"),
      make_gate("channel", 9, 10, {}, "channel 2"), make_gate("tensor", 90, 1)};
  CHECK(localise({1, 1, 1, 1}, layout, gates).worst == "token 5, head 3 (4.2x the limit)");
  CHECK(localise({1, 1, 1, 1}, layout, {}).worst == "");
}

TEST_CASE("excess energy is what the reference's noise does not explain", "[localise]") {
  const Layout layout = layout_of({2, 8}, {"token", "channel"});
  std::vector<uint8_t> valid(16, 1);
  valid[15] = 0;
  const ReferenceScales scales =
      reference_scales(layout, std::vector<double>(16, 1), valid, DType::f32);
  const double scale = 1 / 0.6745;
  std::vector<double> y(16, 1 + 1e-3);
  y[4] = 1.1;
  y[15] = 7;
  const std::vector<double> excess = excess_energy(y, scales, 1e-3);
  CHECK(excess[4] == Approx(0.01 - 4e-6 * scale * scale));
  CHECK(excess[3] == 0);
  CHECK(excess[15] == 0);
  CHECK(excess_energy(y, scales, 1)[3] ==
        Approx(1e-6));  // nothing beyond the noise: the error itself
  y[2] = kNan;
  CHECK(excess_energy(y, scales, 1e-3)[2] == Approx(0.01));
}

TEST_CASE("a picture has the error over rows and columns", "[localise]") {
  const Layout layout = layout_of({2, 3, 2, 4}, {"batch", "token", "head", "head_dim"});
  std::vector<double> energy(48, 0);
  energy[4 * 8 + 5] = 1;     // batch 1, token 1, head 1, head_dim 1
  energy[0 * 8 + 2] = 0.25;  // half the error
  energy[5 * 8 + 7] = 1.0 / (1 << 28);
  energy[5 * 8 + 6] = 1.0 / (1 << 30);
  const ErrorPicture picture = localise(energy, layout, {}).picture;
  CHECK(picture.row_axes == "batch x token");
  CHECK(picture.column_axes == "head x head_dim");
  CHECK((picture.rows == 6 && picture.columns == 8));
  CHECK(picture.cells == std::vector<std::string>{"00e00000", "00000000", "00000000", "00000000",
                                                  "00000f00", "00000001"});
}

TEST_CASE("a picture of a large output has bands", "[localise]") {
  const Layout layout = layout_of({100, 1000}, {"token", "channel"});
  std::vector<double> energy(100'000, 0);
  for (int row = 97; row < 100; ++row) {
    for (int column = 0; column < 500; ++column)
      energy[static_cast<size_t>(row * 1000 + column)] = 1;
  }
  const ErrorPicture picture = localise(energy, layout, {}).picture;
  CHECK(picture.row_axes == "token");
  REQUIRE(picture.cells.size() == 32);
  CHECK(picture.cells[30] == std::string(64, '0'));
  CHECK(picture.cells[31] == std::string(32, 'f') + std::string(32, '0'));
}

}  // namespace plumb::harness
