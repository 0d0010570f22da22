// Attention on a GPU: the tensor cores' version, that for few query tokens and the general one,
// each against float64, at the edges of their tiles. Skipped where there is no GPU.
#include <algorithm>
#include <array>

#include "tests/cuda/attention.h"

namespace plumb {
namespace {

// Edges of tiles (64 and 128 queries, 80 and 128 keys), with features that alternate.
std::vector<Case> cases(int64_t width) {
  constexpr std::array<std::array<int64_t, 2>, 13> kSizes = {{{1, 1},
                                                              {1, 1000},
                                                              {16, 257},
                                                              {17, 17},
                                                              {63, 63},
                                                              {64, 65},
                                                              {65, 127},
                                                              {127, 129},
                                                              {129, 129},
                                                              {129, 257},
                                                              {257, 257},
                                                              {130, 1000},
                                                              {257, 1000}}};
  std::vector<Case> list;
  size_t i = static_cast<size_t>(width / 64);
  for (const auto& [queries, keys] : kSizes) {
    Case c{queries, keys, width};
    c.softcap = std::array{0, 30, 50}[i % 3];
    c.window = std::array{0, 0, 1, 63, 80, 129, 2000}[i % 7];
    c.heads = std::array{8, 2, 4}[i % 3];
    c.kv_heads = std::array{1, 2, 1}[i % 3];
    c.causal = i % 5 != 0;
    c.views = i % 2 != 0;
    list.push_back(c);
    ++i;
  }
  return list;
}

void require_variant(const Device& device, const Case& c, const std::string& variant) {
  const std::string width = std::to_string(c.width);
  if (c.queries <= 16) REQUIRE(variant.rfind("decode.d" + width, 0) == 0);
  else if (is_hopper(device)) REQUIRE(variant == "sm90.d" + width);
}

// The error of weights rounded to the storage dtype, and of the output's rounding, within the
// judge's factor 2 of one rounding's RMS.
TEST_CASE("cuda: attention of random values, against float64 and the shared kernel") {
  const int64_t width = GENERATE(64, 128, 256);
  const DType dtype = GENERATE(DType::bf16, DType::f16);
  const std::unique_ptr<Device> gpu = open_gpu();
  if (!gpu) return;
  const double allowed = 2 * 0.43 * unit_roundoff(dtype);
  for (const Case& c : cases(width)) {
    INFO(c);
    const Values q = random_values(dtype, kBatch * c.heads * c.queries * width, 1, 3);
    const Values k = random_values(dtype, kBatch * c.kv_heads * c.keys * width, 2);
    const Values v = random_values(dtype, kBatch * c.kv_heads * c.keys * width, 3);
    const Inputs in(*gpu, dtype, c, q, k, v);
    std::string variant;
    const Values y = attend(*gpu, dtype, c, in, mask_of(c), &variant);
    require_variant(*gpu, c, variant);
    const Values exact = attend_exactly(c, q, k, v);
    CHECK(relative_rms(y, exact) <= allowed);
    CHECK(relative_rms(attend_shared(*gpu, dtype, c, in), exact) <= allowed);
  }
}

// Queries of zero weigh all visible keys alike, and the values grow by a constant factor from key
// to key in even channels and shrink in odd ones: the last and the first visible key decide, so
// that a border off by one, a wrong head or a wrong batch row shows in every row.
TEST_CASE("cuda: attention sees the right keys, to the last one") {
  const int64_t width = GENERATE(64, 128, 256);
  const DType dtype = GENERATE(DType::bf16, DType::f16);
  const std::unique_ptr<Device> gpu = open_gpu();
  if (!gpu) return;
  for (const Case& c : cases(width)) {
    INFO(c);
    const double range = dtype == DType::bf16 ? 120 : 14, keys = static_cast<double>(c.keys);
    Values v;
    for (int64_t z = 0; z < kBatch * c.kv_heads; ++z) {
      for (int64_t s = 0; s < c.keys; ++s) {
        const double power = range * (static_cast<double>(s) / keys - 0.5);
        for (int64_t d = 0; d < width; ++d) {
          const double factor = 1 + 0.25 * static_cast<double>(z) / (kBatch * 8);
          v.push_back(round_to(dtype, factor * std::exp2(d % 2 ? -power : power)));
        }
      }
    }
    const Values k = random_values(dtype, kBatch * c.kv_heads * c.keys * width, 2);
    const Values q(static_cast<size_t>(kBatch * c.heads * c.queries * width), 0.0);
    const Values y = attend(*gpu, dtype, c, Inputs(*gpu, dtype, c, q, k, v), mask_of(c));
    Values exact, bound;
    for (int64_t row = 0; row < kBatch * c.queries * c.heads; ++row) {
      const int64_t h = row % c.heads, t = row / c.heads % c.queries;
      const int64_t z = row / c.heads / c.queries * c.kv_heads + h / (c.heads / c.kv_heads);
      const int64_t slot = t + c.keys - c.queries;
      const int64_t first = c.window ? std::max<int64_t>(0, slot - c.window + 1) : 0;
      const int64_t last = c.causal ? slot : c.keys - 1;
      double sums[2] = {0, 0};
      for (int64_t s = first; s <= last; ++s) {
        for (size_t d = 0; d < 2; ++d) {
          sums[d] += v[static_cast<size_t>((z * c.keys + s) * width) + d];
        }
      }
      for (int64_t d = 0; d < width; ++d) {
        exact.push_back(sums[d % 2] / static_cast<double>(last - first + 1));
        bound.push_back(2 * rounding_unit(dtype) * exact.back() + smallest_step(dtype));
      }
    }
    require_close(y, exact, bound);
  }
}

// Neighbours of the cases that the tensor cores take.
TEST_CASE("cuda: attention that the tensor cores' version leaves to the shared kernel") {
  const std::unique_ptr<Device> gpu = open_gpu();
  if (!gpu) return;
  const auto variant_of = [&](DType dtype, Case c, const AttentionMask& mask) {
    const Values q = random_values(dtype, kBatch * c.heads * c.queries * c.width, 1);
    const Values k = random_values(dtype, kBatch * c.kv_heads * c.keys * c.width, 2);
    std::string variant;
    attend(*gpu, dtype, c, Inputs(*gpu, dtype, c, q, k, k), mask, &variant);
    return variant.substr(0, 4);
  };
  const Case taken{64, 64, 64};
  if (is_hopper(*gpu)) REQUIRE(variant_of(DType::bf16, taken, mask_of(taken)) == "sm90");
  REQUIRE(variant_of(DType::f32, taken, mask_of(taken)) != "sm90");
  Case c = taken;
  c.width = 72;
  REQUIRE(variant_of(DType::bf16, c, mask_of(c)) != "sm90");
  c = taken;
  c.queries = 16;
  REQUIRE(variant_of(DType::bf16, c, mask_of(c)) != "sm90");
  c = taken;
  c.softcap = 61;
  REQUIRE(variant_of(DType::bf16, c, mask_of(c)) != "sm90");
  AttentionMask blind = mask_of(taken);
  blind.key_offset = 1;  // the first query sees no key
  REQUIRE(variant_of(DType::bf16, taken, blind) != "sm90");
  blind = mask_of(taken);
  blind.window = 1;
  blind.query_offset = 1;  // nor does the last one
  REQUIRE(variant_of(DType::bf16, taken, blind) != "sm90");
}

// One small case per kernel, for compute-sanitizer.
TEST_CASE("cuda: attention, one small case of each kernel") {
  const std::unique_ptr<Device> gpu = open_gpu();
  if (!gpu) return;
  for (const int64_t width : {64, 128, 256}) {
    for (const int64_t queries : {1, 130}) {
      const Case c{queries, 300, width, 4, 2, width == 128 ? 0.0 : 50.0, width == 64 ? 33 : 0};
      const Values q = random_values(DType::bf16, kBatch * c.heads * c.queries * width, 1);
      const Values k = random_values(DType::bf16, kBatch * c.kv_heads * c.keys * width, 2);
      const Inputs in(*gpu, DType::bf16, c, q, k, k);
      std::string variant;
      const auto require_finite = [&] {
        const Values y = attend(*gpu, DType::bf16, c, in, mask_of(c), &variant);
        REQUIRE(std::all_of(y.begin(), y.end(), [](double v) { return std::isfinite(v); }));
      };
      require_finite();
      require_variant(*gpu, c, variant);
      if (queries > 1 || width < 128 || !is_hopper(*gpu)) continue;
      gpu->ops().force("sdpa/sm90");  // which is for more keys
      require_finite();
      gpu->ops().force("");
      REQUIRE(variant == "sm90.decode" + std::to_string(width));
    }
  }
}

}  // namespace
}  // namespace plumb
