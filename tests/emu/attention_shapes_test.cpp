// Attention at the edges of its tiles, on emu-check: head widths, masks, softcap, split keys.
#include <array>
#include <cmath>

#include "tests/kernels/support.h"

namespace plumb {
namespace {

enum class Mask { none, causal, window, padded, hidden, explicit_bool, explicit_additive };
constexpr std::array kMasks = {
    Mask::none,   Mask::causal,        Mask::window,           Mask::padded,
    Mask::hidden, Mask::explicit_bool, Mask::explicit_additive};

struct Sizes {
  int64_t queries, keys, width, heads, kv_heads;
  double spread = 1;  // of the scores
};

Tensor upload(Device& device, DType dtype, const Shape& shape, const Values& values) {
  const Tensor t = device.allocate(dtype, shape);
  std::vector<uint8_t> bytes(static_cast<size_t>(t.bytes()));
  for (size_t i = 0; i < values.size(); ++i) {
    store(dtype, &bytes[i * static_cast<size_t>(size_of(dtype))], values[i]);
  }
  device.upload(t, bytes.data());
  return t;
}

AttentionMask mask_for(Device& device, DType dtype, const Sizes& s, Mask kind) {
  AttentionMask mask;
  mask.causal = kind == Mask::causal || kind == Mask::window || kind == Mask::padded;
  mask.query_offset = std::max<int64_t>(s.keys - s.queries, 0);
  if (kind == Mask::window) mask.window = 20;
  if (kind == Mask::hidden) {  // no query sees any key
    mask.causal = true;
    mask.key_offset = 100000;
    mask.fully_masked = s.keys % 2 ? FullyMasked::zero : FullyMasked::uniform;
  }
  Values values;
  if (kind == Mask::padded) {
    for (int64_t i = 0; i < 2 * s.keys; ++i)
      values.push_back(i % s.keys >= std::min<int64_t>(s.keys - 1, 3));
    mask.key_valid = upload(device, DType::boolean, {2, s.keys}, values);
  }
  if (kind == Mask::explicit_bool || kind == Mask::explicit_additive) {
    const bool additive = kind == Mask::explicit_additive;
    const int64_t heads = additive ? s.heads : 1;
    for (int64_t i = 0; i < 2 * heads * s.queries * s.keys; ++i) {
      const bool allowed = i % 3 != 0 || s.keys == 1;
      values.push_back(!additive ? allowed
                       : allowed ? 0.25 * static_cast<double>(i % 5)
                                 : -info(dtype).max);
    }
    mask.explicit_mask =
        upload(device, additive ? dtype : DType::boolean, {2, heads, s.queries, s.keys}, values);
  }
  return mask;
}

// One attention on one device; which variant ran is appended to `variants`.
Values attention(const std::string& name, DType dtype, const Sizes& s, Mask kind, bool softcap,
                 bool fused, std::vector<std::string>* variants = nullptr) {
  const std::unique_ptr<Device> device = open_device(name);
  const Shape q_shape{2, s.heads, s.queries, s.width}, k_shape{2, s.kv_heads, s.keys, s.width};
  const Tensor q = upload(*device, dtype, q_shape, random_values(dtype, q_shape.numel(), 1));
  const Tensor k = upload(*device, dtype, k_shape, random_values(dtype, k_shape.numel(), 2));
  const Tensor v = upload(*device, dtype, k_shape, random_values(dtype, k_shape.numel(), 3));
  const Tensor out = device->allocate(dtype, {2, s.queries, s.heads, s.width});
  SdpaParams params;
  params.scale = s.spread / std::sqrt(static_cast<double>(s.width));
  if (softcap) params.softcap = 5;
  std::vector<OpRecord> records;
  device->ops().observe(&records);
  if (!fused) device->ops().set_fused(OpSet());
  device->ops().sdpa(out, q, k, v, mask_for(*device, dtype, s, kind), params);
  device->synchronize();
  device->ops().observe(nullptr);
  if (variants) {
    for (const OpRecord& record : records) variants->emplace_back(record.impl.kernel);
  }
  std::vector<uint8_t> bytes(static_cast<size_t>(out.bytes()));
  device->download(bytes.data(), out);
  Values y;
  for (int64_t i = 0; i < out.numel(); ++i) {
    y.push_back(load(dtype, bytes.data() + i * size_of(dtype)));
  }
  return y;
}

// Scores of about 1, values below 4: float32 sums of `width` and `keys` terms, then the storage's
// rounding.
void require_agreement(const std::string& device, DType dtype, const Sizes& s, Mask kind,
                       bool softcap, bool fused, std::vector<std::string>* variants = nullptr) {
  INFO(s.queries << " queries, " << s.keys << " keys, width " << s.width << ", mask "
                 << static_cast<int>(kind) << ", softcap " << softcap);
  const Values y = attention(device, dtype, s, kind, softcap, fused, variants);
  const Values exact = attention("oracle", dtype, s, kind, softcap, fused);
  const double terms = 4 * static_cast<double>(s.width + s.keys) + 64;
  Values bound;
  for (const double value : exact) {
    bound.push_back(2 * rounding_unit(dtype) * std::fabs(value) + terms * kU32 * 4 +
                    (fused ? 0 : 16 * rounding_unit(dtype)));
  }
  require_close(y, exact, bound);
}

TEST_CASE("emu-check: attention, every head width and mask") {
  const std::string device = GENERATE("emu-check:32", "emu-check:64");
  const int64_t width = GENERATE(1, 33, 64, 80, 96, 128, 256);
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  size_t i = static_cast<size_t>(width);
  for (const auto& [queries, keys] :
       std::vector<std::array<int64_t, 2>>{{1, 1}, {1, 33}, {7, 31}, {8, 32}, {9, 65}, {17, 17}}) {
    for (int repeat = 0; repeat < 2; ++repeat, ++i) {
      const Sizes s{queries, keys, width, i % 3 ? 4 : 2, i % 3 == 1 ? 1 : 2};
      require_agreement(device, dtype, s, kMasks[i % kMasks.size()], i % 2, true);
    }
  }
}

TEST_CASE("emu-check: attention, keys split among blocks") {
  const std::string device = GENERATE("emu-check:32", "emu-check:64");
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  for (const Mask kind : kMasks) {
    std::vector<std::string> variants;
    require_agreement(device, dtype, {1, 1023, 64, 4, 1}, kind, kind == Mask::window, true,
                      &variants);
    const bool listed = kind == Mask::explicit_bool || kind == Mask::explicit_additive;
    const std::string expected = dtype == DType::f32 || listed ? "split_keys" : "decode";
    REQUIRE(variants == std::vector<std::string>{expected});
  }
}

// The largest score so far grows beyond what the kernel lets pass, in some rows and not in others.
TEST_CASE("emu-check: attention, one token and scores far apart") {
  const std::string device = GENERATE("emu-check:32", "emu-check:64");
  const int64_t width = GENERATE(64, 128, 256), group = GENERATE(2, 4, 8);
  const DType dtype = GENERATE(DType::f16, DType::bf16);
  require_agreement(device, dtype, {1, 500, width, group, 1, 12}, Mask::causal, false, true);
}

TEST_CASE("emu-check: attention composed") {
  const std::string device = GENERATE("emu-check:32", "emu-check:64");
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  for (const Mask kind : kMasks) {
    require_agreement(device, dtype, {9, 65, 24, 4, 2}, kind, kind == Mask::causal, false);
  }
}

}  // namespace
}  // namespace plumb
