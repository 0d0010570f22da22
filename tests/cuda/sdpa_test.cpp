// Attention on a GPU: the tensor cores' version, that for few query tokens and the general one,
// each against float64, at the edges of their tiles. Skipped where there is no GPU.
#include <array>
#include <cmath>
#include <iostream>
#include <optional>

#include "kernels/error.h"
#include "tests/kernels/support.h"

namespace plumb {
namespace {

struct Case {
  int64_t queries, keys, width;
  int64_t heads = 4, kv_heads = 2;
  double softcap = 0;  // 0: none
  int64_t window = 0;  // 0: none
  bool causal = true;
  bool views = false;  // q, k and v are [B, T, H, D] in memory, k and v parts of longer ones
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << "T " << c.queries << ", S " << c.keys << ", D " << c.width << ", heads " << c.heads
             << '/' << c.kv_heads << ", softcap " << c.softcap << ", window " << c.window
             << (c.causal ? ", causal" : "") << (c.views ? ", views" : "");
}

// The first GPU, or none: then it has said so, and the test is skipped.
std::unique_ptr<Device> open_gpu() {
  for (const DeviceStatus& status : list_devices()) {
    if (status.name != "cuda" && status.name != "cuda:0") continue;
    if (status.usable) return open_device(status.name);
    std::cout << "skipped: " << status.text << '\n';
  }
  return nullptr;
}

bool is_hopper(const Device& device) {
  return device.describe().find("compute capability 9.0") != std::string::npos;
}

AttentionMask mask_of(const Case& c) {
  AttentionMask mask;
  mask.causal = c.causal;
  if (c.window) mask.window = c.window;
  mask.query_offset = c.keys - c.queries;
  return mask;
}

SdpaParams params_of(const Case& c) {
  SdpaParams params;
  params.scale = 1 / std::sqrt(static_cast<double>(c.width));
  if (c.softcap) params.softcap = c.softcap;
  return params;
}

constexpr int64_t kBatch = 2;

// q, k, v of a case on a device. As views, tokens lie before heads, and k and v are the middle of
// longer caches, whose other slots are NaN.
struct Inputs {
  std::vector<Guarded> kept;
  Tensor q, k, v;

  Inputs(Device& device, DType dtype, const Case& c, const Values& query, const Values& key,
         const Values& value) {
    q = place(device, dtype, c.heads, c.queries, 0, c, query);
    k = place(device, dtype, c.kv_heads, c.keys, 3, c, key);
    v = place(device, dtype, c.kv_heads, c.keys, 5, c, value);
  }

 private:
  Tensor place(Device& device, DType dtype, int64_t heads, int64_t tokens, int64_t around,
               const Case& c, const Values& values) {
    if (!c.views) {
      kept.emplace_back(device, dtype, Shape{kBatch, heads, tokens, c.width});
      kept.back().set(values);
      return kept.back();
    }
    const int64_t all = tokens + 2 * around;
    kept.emplace_back(device, dtype, Shape{kBatch, all, heads, c.width});
    Values moved(static_cast<size_t>(kBatch * all * heads * c.width), std::nan(""));
    size_t from = 0;
    for (int64_t b = 0; b < kBatch; ++b) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t d = 0; d < c.width; ++d) {
            moved[static_cast<size_t>(((b * all + around + t) * heads + h) * c.width + d)] =
                values[from++];
          }
        }
      }
    }
    kept.back().set(moved);
    return kept.back().tensor().slice(1, around, around + tokens).transpose(1, 2);
  }
};

// Runs it twice (equal bits, nothing outside written); which variant ran goes to `variant`.
Values attend(Device& device, DType dtype, const Case& c, const Inputs& in,
              const AttentionMask& mask, std::string* variant = nullptr) {
  Guarded out(device, dtype, {kBatch, c.queries, c.heads, c.width});
  std::vector<OpRecord> records;
  device.ops().observe(&records);
  const Values y =
      run(device, {&out}, [&] { device.ops().sdpa(out, in.q, in.k, in.v, mask, params_of(c)); })[0];
  device.ops().observe(nullptr);
  if (variant) *variant = text(records.at(0).impl.kernel, '.', records.at(0).impl.variant);
  return y;
}

Values attend_exactly(const Case& c, const Values& q, const Values& k, const Values& v) {
  const std::unique_ptr<Device> oracle = open_device("oracle");
  Case plain = c;
  plain.views = false;
  const Inputs in(*oracle, DType::f64, plain, q, k, v);
  Guarded out(*oracle, DType::f64, {kBatch, c.queries, c.heads, c.width});
  oracle->ops().sdpa(out, in.q, in.k, in.v, mask_of(c), params_of(c));
  return out.get();
}

// The same call with a mask that lists every pair: not a case for the faster versions.
Values attend_shared(Device& device, DType dtype, const Case& c, const Inputs& in) {
  Guarded listed(device, DType::boolean, {1, 1, c.queries, c.keys});
  Values allowed;
  for (int64_t t = 0; t < c.queries; ++t) {
    for (int64_t s = 0; s < c.keys; ++s) {
      const int64_t back = t + c.keys - c.queries - s;  // how far before the query the key is
      allowed.push_back((!c.causal || back >= 0) && (!c.window || back < c.window));
    }
  }
  listed.set(allowed);
  AttentionMask mask;
  mask.explicit_mask = listed;
  std::string variant;
  Values y = attend(device, dtype, c, in, mask, &variant);
  REQUIRE((variant.rfind("tiles", 0) == 0 || variant.rfind("split_keys", 0) == 0));
  return y;
}

double relative_rms(const Values& y, const Values& exact) {
  double error = 0, size = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    error += (y[i] - exact[i]) * (y[i] - exact[i]);
    size += exact[i] * exact[i];
  }
  return std::sqrt(error / size);
}

// Edges of tiles (64 and 128 queries, 80 and 128 keys), then one of each feature in turn.
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
      for (const double y : attend(*gpu, DType::bf16, c, in, mask_of(c), &variant)) {
        REQUIRE(std::isfinite(y));
      }
      require_variant(*gpu, c, variant);
    }
  }
}

}  // namespace
}  // namespace plumb
