// Implementations by name: which names a regular expression leaves, and what then runs.
#include "kernels/ops/implementations.h"

#include "kernels/core/error.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/isa.h"
#include "tests/catch.h"
#include "tests/kernels/support.h"

namespace plumb {
namespace {

std::vector<Implementation> sample() {
  return {{OpId::linear, {"gemv", "m1"}},
          {OpId::linear, {"gemv", "m4"}},
          {OpId::linear, {"tiles", {}}},
          {OpId::rms_norm, {"tiles", {}}},
          {OpId::add, {"scalars", {}}}};
}

std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

// x [rows, 64] times the identity; the implementations that ran.
std::vector<std::string> linear(const std::string& impl, int64_t rows, DType dtype = DType::f32) {
  const auto device = open_cpu_device(1);
  Guarded x(*device, dtype, {rows, 64}), w(*device, dtype, {64, 64}),
      out(*device, dtype, {rows, 64});
  Values identity(64 * 64, 0), values;
  for (size_t i = 0; i < 64; ++i) identity[i * 65] = 1;
  for (int64_t i = 0; i < rows * 64; ++i) values.push_back(static_cast<double>(i % 97));
  x.set(values);
  w.set(identity);
  device->ops().force(impl);
  std::vector<OpRecord> records;
  device->ops().observe(&records);
  device->ops().linear(out, x, w);
  CHECK(out.get() == values);
  std::vector<std::string> names;
  for (const OpRecord& record : records) names.push_back(to_string(record.op, record.impl));
  return names;
}

}  // namespace

TEST_CASE("implementations: an op of which some names match runs only those") {
  ImplChoice choice(sample());
  choice.begin(OpId::linear);
  CHECK_FALSE(choice.forced());
  CHECK(choice.choose({"tiles", {}}));

  choice.force("gemv", "here");
  choice.begin(OpId::linear);
  CHECK(choice.forced());
  CHECK_FALSE(choice.choose({"tiles", {}}));
  CHECK(choice.chosen() == ImplName{});
  CHECK(choice.choose({"gemv", "m4"}));
  CHECK(to_string(OpId::linear, choice.chosen()) == "linear/gemv.m4");
}

TEST_CASE("implementations: an op of which no name or every name matches is free") {
  ImplChoice choice(sample());
  choice.force("linear/tiles|add/", "here");
  for (const OpId op : {OpId::rms_norm, OpId::add, OpId::softmax}) {
    choice.begin(op);
    CHECK_FALSE(choice.forced());
    CHECK(choice.choose({"tiles", {}}));
  }
  choice.begin(OpId::linear);
  CHECK(choice.forced());
  choice.force("", "here");
  CHECK_FALSE(choice.forced());
}

TEST_CASE("implementations: what cannot be forced is said") {
  ImplChoice choice(sample());
  CHECK(message_of([&] { choice.force("few_columns", "emu:32"); }) ==
        "[--impl] \"few_columns\" is found in no implementation of emu:32; harness support --impl "
        "--device emu:32 lists them");
  CHECK_THROWS_AS(choice.force("(", "here"), UsageError);
  choice.force("m1", "here");
  choice.begin(OpId::linear);
  CHECK_THROWS_AS(choice.exhausted(), Unsupported);
  CHECK(message_of([&] { choice.exhausted(); }) ==
        "[linear] --impl \"m1\" leaves no implementation that can compute this case; there are "
        "linear/gemv.m1, linear/gemv.m4, linear/tiles");
}

TEST_CASE("implementations: a device must declare what it runs") {
  ImplChoice choice(sample());
  choice.begin(OpId::linear);
  CHECK_NOTHROW(choice.require_declared());
  choice.choose({"gemv", "m2"});
  CHECK_THROWS_AS(choice.require_declared(), std::logic_error);
  choice.choose({"gemv", "m1"});
  CHECK_NOTHROW(choice.require_declared());
}

TEST_CASE("implementations: cpu runs the kernel and instruction set that are forced") {
  const std::string widest = cpu::choose_simd().name;
  using Names = std::vector<std::string>;
  CHECK(linear("", 2) == Names{"linear/gemv." + widest});
  CHECK(linear("linear/blocked", 2) == Names{"linear/blocked." + widest});
  CHECK(linear("baseline", 2, DType::bf16) == Names{"linear/gemv.baseline"});
  CHECK(linear("baseline", 9, DType::bf16) == Names{"linear/blocked.baseline"});
  CHECK_THROWS_AS(linear("linear/gemv", 9), Unsupported);
  CHECK_THROWS_AS(linear("cublaslt", 9), UsageError);
}

}  // namespace plumb
