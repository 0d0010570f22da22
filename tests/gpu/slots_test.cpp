// Slots of keys and values: positions that kernels read from device memory give the bits of
// positions that the host knows.
#include "kernels/ops/slots.h"

#include "kernels/core/error.h"
#include "kernels/ops/ops.h"
#include "tests/gpu/gpu_devices.h"

namespace plumb {
namespace {

class Slots {
 public:
  Slots(Device& device, DType dtype) : device_(device), dtype_(dtype) {}

  // Different values between -1 and 1.
  Tensor input(const Shape& shape) {
    const Tensor host = host_tensor(dtype_, shape), out = device_.allocate(dtype_, shape);
    for (int64_t i = 0; i < host.numel(); ++i) {
      store(dtype_, host.data<char>() + i * size_of(dtype_),
            static_cast<double>((i * 37 + seed_) % 127 - 63) / 64);
    }
    ++seed_;
    device_.upload(out, host.raw());
    return out;
  }

  Position position(int64_t past) {
    const Tensor stored = device_.allocate(DType::i64, {1});
    device_.upload(stored, &past);
    return {past, stored};
  }

  std::string bytes(const Tensor& t) {
    std::string out(static_cast<size_t>(t.bytes()), '\0');
    device_.download(out.data(), t);
    device_.synchronize();
    return out;
  }

  Tensor zeros(const Shape& shape) {
    const Tensor out = device_.allocate(dtype_, shape);
    device_.fill(out, 0);
    return out;
  }

  // store_tokens against copies to the places that slots.h names; other slots stay as they are.
  void check_store(int64_t past, int64_t tokens, int64_t slots, std::optional<int64_t> window,
                   int64_t width) {
    INFO(tokens << " tokens behind " << past << ", " << slots << " slots, width " << width);
    const Shape shape{2, 3, slots, width};
    const Tensor keys = zeros(shape), values = zeros(shape), expected = zeros(shape);
    const Tensor k = input({2, tokens, 3, width}).transpose(1, 2), v = input({2, 3, tokens, width});
    Ops& ops = device_.ops();
    ops.store_tokens(keys, values, k, v, position(past), window);
    for (const auto& [stored, x] : {std::pair{keys, k}, std::pair{values, v}}) {
      device_.fill(expected, 0);
      for (int64_t t = 0; t < tokens; ++t) {
        if (window && t < tokens - *window) continue;
        const Tensor one = x.slice(2, t, t + 1);
        const int64_t at = window ? (past + t) % *window : past + t;
        ops.copy(expected.slice(2, at, at + 1), one);
        if (window) ops.copy(expected.slice(2, *window + at, *window + at + 1), one);
      }
      CHECK(bytes(stored) == bytes(expected));
    }
  }

  // sdpa over slots against sdpa over those that are visible.
  void check_sdpa(int64_t past, int64_t slots, std::optional<int64_t> window, int64_t width,
                  bool padded) {
    INFO("position " << past << " of " << slots << " slots, window " << window.value_or(0)
                     << ", width " << width << (padded ? ", padded" : ""));
    const Tensor q = input({2, 4, 1, width});
    const Tensor k = input({2, 2, slots, width}), v = input({2, 2, slots, width});
    AttentionMask mask, plain;
    mask.position = position(past);
    mask.window = window;
    const SlotRange seen = visible_slots(past, window);
    if (padded) {
      const Tensor host = host_tensor(DType::boolean, {2, slots});
      for (int64_t i = 0; i < host.numel(); ++i) host.data<bool>()[i] = i % slots >= i / slots;
      mask.key_valid = device_.allocate(DType::boolean, host.shape());
      device_.upload(mask.key_valid, host.raw());
      plain.key_valid = mask.key_valid.slice(1, seen.begin, seen.end);
    }
    const SdpaParams params{0.125, 20.0};
    const Tensor out = zeros({2, 1, 4, width}), expected = zeros({2, 1, 4, width});
    device_.ops().sdpa(out, q, k, v, mask, params);
    device_.ops().sdpa(expected, q, k.slice(2, seen.begin, seen.end),
                       v.slice(2, seen.begin, seen.end), plain, params);
    CHECK(bytes(out) == bytes(expected));
  }

 private:
  Device& device_;
  DType dtype_;
  int64_t seed_ = 0;
};

template <class Check>
void on_every_device(Check check) {
  for (const std::string& name : gpu_and_emulated_devices()) {
    const auto device = open_device(name);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      INFO(name << ' ' << name_of(dtype));
      Slots slots(*device, dtype);
      check(slots, name);
    }
  }
}

TEST_CASE("tokens go to their slots, others stay") {
  on_every_device([](Slots& slots, const std::string&) {
    for (const int64_t width : {16, 5}) {  // 16-byte accesses; single elements
      for (const int64_t past : {0, 6}) slots.check_store(past, 1, 7, {}, width);
      slots.check_store(2, 4, 7, {}, width);
      for (const int64_t past : {0, 3, 4, 9}) {
        for (const int64_t tokens : {1, 3, 4, 11}) slots.check_store(past, tokens, 8, 4, width);
      }
      slots.check_store(5, 2, 2, 1, width);
    }
  });
}

TEST_CASE("attention over slots has the bits of attention over the visible ones") {
  on_every_device([](Slots& slots, const std::string& device) {
    for (const int64_t width : {64, 20}) {
      for (const int64_t past : {0, 3, 63, 64, 299}) slots.check_sdpa(past, 300, {}, width, false);
      for (const int64_t past : {0, 3, 4, 7, 1000}) slots.check_sdpa(past, 8, 4, width, false);
      for (const int64_t past : {68, 69, 139, 141}) slots.check_sdpa(past, 140, 70, width, false);
      slots.check_sdpa(200, 300, {}, width, true);
    }
    if (device.rfind("emu-check", 0) == 0) return;  // these take long there
    for (const int64_t past : {255, 256, 600, 1023}) slots.check_sdpa(past, 1024, {}, 128, false);
    slots.check_sdpa(5000, 600, 300, 256, false);
  });
}

TEST_CASE("slots and positions that do not fit are refused") {
  for (const std::string& name : gpu_devices()) {
    const auto device = open_device(name);
    Slots slots(*device, DType::f32);
    const Tensor keys = slots.zeros({1, 1, 4, 8}), k = slots.zeros({1, 1, 2, 8});
    const auto message = [&](int64_t past, std::optional<int64_t> window) -> std::string {
      try {
        device->ops().store_tokens(keys, keys, k, k, slots.position(past), window);
      } catch (const UsageError& error) {
        return error.what();
      }
      return "";
    };
    CHECK(message(3, {}) ==
          "[store_tokens] has room for 4 tokens, 3 are stored and 2 more are to come");
    CHECK(message(0, 3) == "[store_tokens] 4 slots for a window of 3, expected twice as many");
    CHECK(message(2, {}).empty());
  }
}

}  // namespace
}  // namespace plumb
