// A plugin's kernel for the CPU that touches memory outside its operands.
#include <array>
#include <cstring>
#include <functional>
#include <thread>

#include "kernels/core/error.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/plugin/plugin_device.h"
#include "tests/catch.h"

namespace plumb {
namespace {

// Runs instead of every op `mul`; what a kernel may not have in C++, a test may.
std::function<int(const plumb_call&)> kernel;
int run_kernel(const plumb_call* call) { return kernel(*call); }

float* data(const plumb_call& call, int i) { return static_cast<float*>(call.tensors[i].data); }
int64_t columns(const plumb_call& call) {
  const plumb_tensor& x = call.tensors[0];
  return x.shape[x.rank - 1];
}
void touch(const float* p) { static_cast<void>(*static_cast<const volatile float*>(p)); }
void put(float* p) { *static_cast<volatile float*>(p) = 7.1f; }

// out = a * b; any stride.
int multiply(const plumb_call& call) {
  const plumb_tensor *out = &call.tensors[0], *a = &call.tensors[1], *b = &call.tensors[2];
  for (int64_t row = 0; row < out->shape[0]; ++row) {
    for (int64_t c = 0; c < out->shape[1]; ++c) {
      data(call, 0)[row * out->stride[0] + c] =
          data(call, 1)[row * a->stride[0] + c] * data(call, 2)[row * b->stride[0] + c];
    }
  }
  return PLUMB_OK;
}

class Fixture {
 public:
  static constexpr int64_t kRows = 3, kColumns = 7;  // 84 bytes: no multiple of 8

  Fixture() {
    static const plumb_op ops[] = {{"mul", run_kernel, {24, 0, 0}}};
    static const plumb_plugin plugin = {PLUMB_PLUGIN_VERSION, "mine", "cpu", nullptr, 1, ops};
    device =
        replace_ops(open_cpu_device(1), {std::make_shared<const PluginLibrary>(plugin, "mine.so")});
    for (Tensor* t : {&a, &b, &out}) {
      // Rows 1 to 3 of five, seven columns of nine.
      const Tensor whole = device->allocate(DType::f32, {kRows + 2, kColumns + 2});
      const std::vector<float> ones(static_cast<size_t>(whole.numel()), 1.0f);
      device->upload(whole, ones.data());
      *t = whole.slice(0, 1, 1 + kRows);
    }
    narrow(kColumns + 2);
  }
  void narrow(int64_t to) {
    for (Tensor* t : {&a, &b, &out}) *t = t->slice(1, 0, to);
  }
  void own_memory() {
    for (Tensor* t : {&a, &b, &out}) {
      *t = device->allocate(DType::f32, {kRows, kColumns});
      const std::vector<float> ones(kRows * kColumns, 1.0f);
      device->upload(*t, ones.data());
    }
  }
  // What the call throws, or nothing.
  std::string run(PageEnd end, std::function<int(const plumb_call&)> body) {
    kernel = std::move(body);
    device->ops().confine(end);
    try {
      device->ops().mul(out, a, b);
      return "";
    } catch (const DeviceError& error) {
      return error.what();
    }
  }
  bool is_right() const {
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t c = 0; c < out.dim(1); ++c) {
        if (out.data<float>()[row * out.stride(0) + c] != 1.0f) return false;
      }
    }
    return true;
  }

  std::unique_ptr<Device> device;
  Tensor a, b, out;
};

bool has(const std::string& text, const std::string& words) {
  UNSCOPED_INFO(text);
  return text.find(words) != std::string::npos;
}

TEST_CASE("a plugin's operands end where their views do") {
  Fixture f;
  for (const PageEnd end : {PageEnd::left, PageEnd::right}) {
    CHECK(f.run(end, multiply).empty());
    CHECK(f.is_right());
  }
  const std::string left = f.run(PageEnd::left, [](const plumb_call& call) {
    touch(data(call, 1) - 1);
    return multiply(call);
  });
  CHECK(has(
      left,
      "[mul] plugin mine.so: read out of bounds: 4 byte(s) before the start of input \"a\" at "));
  const std::string right = f.run(PageEnd::right, [](const plumb_call& call) {
    touch(data(call, 2) + 3 * call.tensors[2].stride[0]);  // a row of the allocation, not the view
    return multiply(call);
  });
  CHECK(has(right, "read out of bounds: byte 0 past the end of input \"b\" at "));
  const std::string wrote = f.run(PageEnd::right, [](const plumb_call& call) {
    put(data(call, 0) + 3 * call.tensors[0].stride[0] + 2);
    return multiply(call);
  });
  CHECK(has(wrote, "wrote out of bounds: byte 8 past the end of output \"out\" at "));
  const std::string input = f.run(PageEnd::left, [](const plumb_call& call) {
    put(data(call, 1) + 2);
    return multiply(call);
  });
  CHECK(has(input, "wrote to its input \"a\", byte 8, at "));
  CHECK(f.run(PageEnd::right, multiply).empty());
}

TEST_CASE("between the rows of a view a plugin may read, and not write") {
  Fixture f;
  f.narrow(Fixture::kColumns);
  for (const PageEnd end : {PageEnd::left, PageEnd::right}) {
    const std::string read = f.run(end, [](const plumb_call& call) {
      touch(data(call, 1) + columns(call));
      return multiply(call);
    });
    CHECK(read.empty());
    CHECK(f.is_right());
    const std::string wrote = f.run(end, [](const plumb_call& call) {
      put(data(call, 0) + columns(call));
      return multiply(call);
    });
    CHECK(has(wrote, "wrote out of bounds: byte 28 of output \"out\" is between its rows"));
  }
}

TEST_CASE("a plugin works in place, and gets scratch memory that ends") {
  Fixture f;
  f.a = f.out;
  CHECK(f.run(PageEnd::right, multiply).empty());
  const std::string scratch = f.run(PageEnd::right, [](const plumb_call& call) {
    auto* memory = static_cast<float*>(call.scratch(&call, 64));
    std::memset(memory, 0, 64);
    touch(memory + 16);
    return multiply(call);
  });
  CHECK(has(scratch, "read out of bounds: outside its scratch memory at "));
}

#if defined(__x86_64__)
// The processor is to refuse it, not a sanitizer.
[[gnu::no_sanitize("alignment")]] int needs_aligned(const plumb_call& call) {
  using Four = float __attribute__((vector_size(16)));
  const Four four = *static_cast<const volatile Four*>(call.tensors[1].data);
  return four[0] == 1.0f ? multiply(call) : PLUMB_FAILED;
}

TEST_CASE("a plugin may need aligned operands, and may say so") {
  Fixture f;
  f.own_memory();
  for (const PageEnd end : {PageEnd::left, PageEnd::right}) {
    const std::string trapped = f.run(end, needs_aligned);
    CHECK(trapped.empty());
    const std::string refused = f.run(end, [](const plumb_call& call) {
      return reinterpret_cast<uintptr_t>(call.tensors[0].data) % 64 ? PLUMB_UNSUPPORTED
                                                                    : multiply(call);
    });
    CHECK(refused.empty());
    CHECK(f.is_right());
  }
}
#endif

TEST_CASE("a thread of a plugin that leaves its operands ends the device") {
  Fixture f;
  f.own_memory();
  const std::string error = f.run(PageEnd::right, [](const plumb_call& call) {
    std::thread([&] { touch(data(call, 1) + 21); }).join();
    return multiply(call);
  });
  CHECK(has(error, "read out of bounds: byte 0 past the end of input \"a\" at "));
  CHECK(has(error, ", in a thread of its own"));
  CHECK_THROWS_AS(f.device->synchronize(), DeviceError);
}

}  // namespace
}  // namespace plumb
