// Attention of one query token on Hopper's tensor cores: group sizes, ends of tiles and splits,
// hidden slots, and the cases that it leaves to other kernels. Skipped where there is no GPU; on
// other GPUs the kernel of CUDA cores is held to the same.
#include <algorithm>
#include <array>
#include <limits>

#include "tests/cuda/attention.h"

namespace plumb {
namespace {

// The kernel, also where it is not the faster one.
struct Forced {
  Device& device;
  explicit Forced(Device& of) : device(of) { force(); }
  void force() const { device.ops().force(is_hopper(device) ? "sdpa/sm90" : ""); }
  ~Forced() { device.ops().force(""); }
  Forced(const Forced&) = delete;
  Forced& operator=(const Forced&) = delete;
};

std::string expected_variant(const Device& device, int64_t width) {
  return is_hopper(device) ? "sm90.decode" + std::to_string(width) : "decode.d";
}

// A tensor [batch, heads, tokens, width] of a case, with `before` and `after` other tokens around,
// all of them NaN: a cache of which a mask leaves the middle.
struct Cache {
  Guarded kept;

  Cache(Device& device, const Case& c, const Values& values, int64_t before, int64_t after)
      : kept(device, DType::bf16, {kBatch, c.kv_heads, before + c.keys + after, c.width}) {
    const int64_t all = before + c.keys + after;
    Values padded(static_cast<size_t>(kBatch * c.kv_heads * all * c.width), std::nan(""));
    for (int64_t z = 0; z < kBatch * c.kv_heads; ++z) {
      const auto from = values.begin() + z * c.keys * c.width;
      std::copy(from, from + c.keys * c.width, padded.begin() + (z * all + before) * c.width);
    }
    kept.set(padded);
  }
};

struct Operands {
  Values q, k, v;
  explicit Operands(const Case& c)
      : q(random_values(DType::bf16, kBatch * c.heads * c.queries * c.width, 1, 3)),
        k(random_values(DType::bf16, kBatch * c.kv_heads * c.keys * c.width, 2)),
        v(random_values(DType::bf16, kBatch * c.kv_heads * c.keys * c.width, 3)) {}
};

Case one_token(int64_t keys, int64_t width, int64_t group, int64_t kv_heads = 2) {
  Case c{1, keys, width};
  c.kv_heads = kv_heads;
  c.heads = group * kv_heads;
  return c;
}

// The error of the output's rounding, within the judge's factor 2 of its RMS.
TEST_CASE("cuda: attention of one token, against float64 and the kernel of CUDA cores") {
  const int64_t width = GENERATE(128, 256);
  const std::unique_ptr<Device> gpu = open_gpu();
  if (!gpu) return;
  const Forced forced(*gpu);
  const double allowed = 2 * 0.43 * unit_roundoff(DType::bf16);
  size_t i = static_cast<size_t>(width / 128);
  for (const int64_t keys : {1, 15, 16, 17, 127, 1000, 4099}) {
    for (int64_t group = 1; group <= 8; ++group, ++i) {
      Case c = one_token(keys, width, group, i % 4 == 0 ? 1 : 2);
      c.softcap = std::array{0, 30, 50}[i % 3];
      c.window = std::array{0, 0, 1, 16, 63, 700, 5000}[i % 7];
      c.causal = i % 5 != 0;
      c.views = i % 2 != 0;
      INFO(c);
      const Operands of(c);
      const Inputs in(*gpu, DType::bf16, c, of.q, of.k, of.v);
      std::string variant;
      const Values y = attend(*gpu, DType::bf16, c, in, mask_of(c), &variant);
      REQUIRE(variant.rfind(expected_variant(*gpu, width), 0) == 0);
      gpu->ops().force("");  // as the case is small, the other one
      const Values other = attend(*gpu, DType::bf16, c, in, mask_of(c), &variant);
      forced.force();
      REQUIRE(variant.rfind("decode.d" + std::to_string(width), 0) == 0);
      const Values exact = attend_exactly(c, of.q, of.k, of.v);
      CHECK(relative_rms(y, exact) <= allowed);
      CHECK(relative_rms(other, exact) <= allowed);
    }
  }
}

// One block has all keys of a head: it writes the output itself.
TEST_CASE("cuda: attention of one token, more heads than multiprocessors") {
  const int64_t width = GENERATE(128, 256);
  const std::unique_ptr<Device> gpu = open_gpu();
  if (!gpu) return;
  const Forced forced(*gpu);
  Case c = one_token(300, width, 2, 90);
  c.softcap = 30;
  const Operands of(c);
  const Inputs in(*gpu, DType::bf16, c, of.q, of.k, of.v);
  const Values y = attend(*gpu, DType::bf16, c, in, mask_of(c));
  CHECK(relative_rms(y, attend_exactly(c, of.q, of.k, of.v)) <=
        2 * 0.43 * unit_roundoff(DType::bf16));
}

// Slots before the window and after the query change no bit, whatever they hold.
TEST_CASE("cuda: attention of one token, NaN in slots that it may not see") {
  const int64_t width = GENERATE(128, 256);
  const std::unique_ptr<Device> gpu = open_gpu();
  if (!gpu) return;
  const Forced forced(*gpu);
  for (const int64_t keys : {1, 15, 16, 17, 64, 127, 1000, 4099}) {
    for (const int64_t before : {0, 5}) {
      const Case c = one_token(keys, width, 4);
      INFO(c << ", " << before << " slots before");
      const Operands of(c);
      const Inputs in(*gpu, DType::bf16, c, of.q, of.k, of.v);
      const Values y = attend(*gpu, DType::bf16, c, in, mask_of(c));
      const Cache k(*gpu, c, of.k, before, 40), v(*gpu, c, of.v, before, 40);
      Inputs cached = in;
      cached.k = k.kept;
      cached.v = v.kept;
      AttentionMask mask = mask_of(c);
      mask.query_offset = before + keys - 1;
      if (before) mask.window = keys;
      std::string variant;
      REQUIRE(attend(*gpu, DType::bf16, c, cached, mask, &variant) == y);
      REQUIRE(variant.rfind(expected_variant(*gpu, width), 0) == 0);
    }
  }
}

TEST_CASE("cuda: attention of one token that may see no key") {
  const int64_t width = GENERATE(128, 256), keys = GENERATE(1, 1000);
  const std::unique_ptr<Device> gpu = open_gpu();
  if (!gpu) return;
  const Forced forced(*gpu);
  const Case c = one_token(keys, width, 3);
  const Operands of(c);
  const Inputs in(*gpu, DType::bf16, c, of.q, of.k, of.v);
  AttentionMask mask = mask_of(c);
  mask.key_offset = 100000;
  mask.fully_masked = FullyMasked::zero;
  for (const double y : attend(*gpu, DType::bf16, c, in, mask)) REQUIRE(y == 0);
  mask.fully_masked = FullyMasked::uniform;
  Values exact, bound;
  for (int64_t row = 0; row < kBatch * c.heads; ++row) {
    const int64_t z = row / 3;
    for (int64_t d = 0; d < width; ++d) {
      double sum = 0;
      for (int64_t s = 0; s < keys; ++s) {
        sum += of.v[static_cast<size_t>((z * keys + s) * width + d)];
      }
      exact.push_back(sum / static_cast<double>(keys));
      bound.push_back(2 * rounding_unit(DType::bf16) * std::fabs(exact.back()) + 8 * kU32);
    }
  }
  require_close(attend(*gpu, DType::bf16, c, in, mask), exact, bound);
}

// The low halves of the weights have either sign, or none.
TEST_CASE("cuda: attention of one token, an infinite value stays one") {
  const int64_t width = GENERATE(128, 256), group = GENERATE(2, 4, 8);
  const std::unique_ptr<Device> gpu = open_gpu();
  if (!gpu) return;
  const Forced forced(*gpu);
  const Case c = one_token(100, width, group);
  Operands of(c);
  for (double& q : of.q) q /= 8;  // no weight vanishes
  const int64_t channel = 77, key = 98;
  of.v[static_cast<size_t>(key * width + channel)] = std::numeric_limits<double>::infinity();
  const Inputs in(*gpu, DType::bf16, c, of.q, of.k, of.v);
  const Values y = attend(*gpu, DType::bf16, c, in, mask_of(c));
  for (size_t i = 0; i < y.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const bool hit = at % width == channel && at / width < group;
    REQUIRE((hit ? std::isinf(y[i]) && y[i] > 0 : std::isfinite(y[i])));
  }
}

// Neighbours of the cases that it takes.
TEST_CASE("cuda: attention of one token that tensor cores leave to other kernels") {
  const std::unique_ptr<Device> gpu = open_gpu();
  if (!gpu) return;
  const auto taken = [&](DType dtype, const Case& c, const AttentionMask& mask) {
    const Operands of(c);
    std::string variant;
    gpu->ops().force("sdpa/(sm90.decode|decode|tiles|split_keys)");
    attend(*gpu, dtype, c, Inputs(*gpu, dtype, c, of.q, of.k, of.v), mask, &variant);
    return variant.rfind("sm90.decode", 0) == 0;
  };
  const Case c = one_token(100, 128, 8);
  REQUIRE(taken(DType::bf16, c, mask_of(c)) == is_hopper(*gpu));
  REQUIRE(!taken(DType::f16, c, mask_of(c)));
  REQUIRE(!taken(DType::f32, c, mask_of(c)));
  for (const int64_t width : {64, 96, 136}) {
    const Case other = one_token(100, width, 8);
    REQUIRE(!taken(DType::bf16, other, mask_of(other)));
  }
  const Case wide = one_token(100, 128, 9);
  REQUIRE(!taken(DType::bf16, wide, mask_of(wide)));
  Case two = c;
  two.queries = 2;
  REQUIRE(!taken(DType::bf16, two, mask_of(two)));
  Guarded valid(*gpu, DType::boolean, {kBatch, c.keys});
  valid.set(Values(static_cast<size_t>(kBatch * c.keys), 1.0));
  AttentionMask padded = mask_of(c);
  padded.key_valid = valid;
  REQUIRE(!taken(DType::bf16, c, padded));
}

}  // namespace
}  // namespace plumb
