// A device that damages memory, is not reproducible or fails gets the status for it, and the next
// checkpoint on the same device is none the worse.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "kernels/core/error.h"
#include "tests/catch.h"
#include "tests/faults/kills.h"

namespace plumb::harness::testing {
namespace {

// A norm of the first f32 recording, every element of which is judged.
Case norm() {
  for (const Case& c : suite().cases("rms_norm")) {
    if (c.recording->dtype() == DType::f32) return c;
  }
  FAIL("no rms_norm checkpoint in f32");
  return {};
}

using Run = std::function<void(Call&, const Tensor& out, const Tensor& x, const Tensor& weight,
                               const RmsNormParams&)>;

Hooks norm_hook(const Run& run) {
  return {
      .rms_norm = [run](Call& c, auto& out, auto& x, auto& w, auto& p) { run(c, out, x, w, p); }};
}

// The right result, then something else.
Hooks after_norm(const std::function<void(Call&, const Tensor& out, const Tensor& x,
                                          const Tensor& weight)>& run) {
  return norm_hook([run](Call& c, auto& out, auto& x, auto& w, auto& p) {
    c.ops.rms_norm(out, x, w, p);
    run(c, out, x, w);
  });
}

CheckpointResult result_of(const Hooks& hooks) {
  FaultyDevice device(suite().device(), hooks);
  return suite().run(norm(), device);
}

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

template <class E>
Hooks throwing(const E& error) {
  return norm_hook([error](Call&, auto&, auto&, auto&, auto&) { throw error; });
}

}  // namespace

TEST_CASE("a write past the end is seen though the result is right") {
  const auto result = result_of(after_norm(
      [](Call&, auto& out, auto&, auto&) { out.template data<float>()[out.numel()] = 0; }));
  CHECK(result.status == Status::fail);
  CHECK(result.reason == "wrote out of bounds: byte 0 past the end of output \"out\"");
}

TEST_CASE("a write before the start is seen though the result is right") {
  const auto result = result_of(
      after_norm([](Call&, auto& out, auto&, auto&) { out.template data<char>()[-1] = 0; }));
  CHECK(result.status == Status::fail);
  CHECK(result.reason == "wrote out of bounds: 1 byte(s) before the start of output \"out\"");
}

TEST_CASE("a write behind an input or a weight is seen") {
  const auto input = result_of(
      after_norm([](Call&, auto&, auto& x, auto&) { x.template data<float>()[x.numel()] = 0; }));
  CHECK(input.status == Status::fail);
  CHECK(mentions(input.reason, "past the end of input \"x\""));
  const auto weight = result_of(after_norm(
      [](Call&, auto&, auto&, auto& w) { w.template data<float>()[w.numel() + 3] = 0; }));
  CHECK(weight.status == Status::fail);
  CHECK(mentions(weight.reason, "byte 12 past the end of weight \"weight\""));
}

TEST_CASE("an input or a weight changed in place is seen though the result is right") {
  const auto input =
      result_of(after_norm([](Call&, auto&, auto& x, auto&) { x.template data<float>()[5] += 1; }));
  CHECK(input.status == Status::fail);
  CHECK(input.reason == "changed its input \"x\" in place");
  const auto weight =
      result_of(after_norm([](Call&, auto&, auto&, auto& w) { w.template data<float>()[0] += 1; }));
  CHECK(weight.status == Status::fail);
  CHECK(weight.reason == "changed its weight \"weight\" in place");
}

TEST_CASE("scratch that is read before it is written") {
  SECTION("and used: NaN") {
    const auto result = result_of(after_norm([](Call& c, auto& out, auto&, auto&) {
      Arena::Scope scope(c.arena);
      const Tensor scratch = c.arena.take(out.dtype(), out.shape());
      c.ops.add(out, out, scratch);
    }));
    CHECK(result.status == Status::fail);
    CHECK(mentions(result.reason, "class"));
  }
  SECTION("and used only where it is a number: another result with other leftovers") {
    const auto result = result_of(after_norm([](Call& c, auto& out, auto&, auto&) {
      Arena::Scope scope(c.arena);
      const Tensor scratch = c.arena.take(out.dtype(), out.shape());
      float& first = out.template data<float>()[0];
      if (!std::isnan(scratch.data<float>()[0])) first = std::nextafter(first, 10.0f);
    }));
    CHECK(result.status == Status::nondeterministic);
    CHECK(mentions(result.reason, "an uninitialised read"));
    CHECK(result.determinism == Determinism::d1);
  }
}

TEST_CASE("what differs between runs with equal memory is no uninitialised read") {
  int calls = 0;
  const auto result = result_of(after_norm([&calls](Call&, auto& out, auto&, auto&) {
    float& first = out.template data<float>()[0];
    if (calls++ > 0) first = std::nextafter(first, 10.0f);
  }));
  CHECK(result.status == Status::nondeterministic);
  CHECK(mentions(result.reason, "between runs with equal memory: not deterministic"));
}

TEST_CASE("an output that is not written") {
  const auto result = result_of(norm_hook([](Call& c, auto& out, auto& x, auto& w, auto& p) {
    const int64_t last = out.dim(0);
    c.ops.rms_norm(out.slice(0, 0, last - 1), x.slice(0, 0, last - 1), w, p);
  }));
  CHECK(result.status == Status::fail);
}

TEST_CASE("an output that depends on the run") {
  int runs = 0;
  const auto result = result_of(after_norm([&runs](Call&, auto& out, auto&, auto&) {
    float& last = out.template data<float>()[out.numel() - 1];
    if (++runs % 2 == 0) last = std::nextafter(last, 10.0f);
  }));
  CHECK(result.status == Status::nondeterministic);
  CHECK(mentions(result.reason, "output \"out\" differs between run 1"));
  CHECK(result.determinism == Determinism::d1);
  CHECK(result.runs == 2);
}

TEST_CASE("one NaN or infinity among good elements") {
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const auto result = result_of(after_norm([value](Call&, auto& out, auto&, auto&) {
      out.template data<float>()[out.numel() / 2] = value;
    }));
    CHECK(result.status == Status::fail);
    CHECK(mentions(result.reason, std::isnan(value) ? "nan" : "inf"));
  }
}

TEST_CASE("errors of a device become their status") {
  CHECK(result_of(throwing(DeviceError("lost"))).status == Status::device_error);
  CHECK(result_of(throwing(DeviceError("lost"))).reason == "lost");
  CHECK(result_of(throwing(Unsupported("no f32"))).status == Status::unsupported);
  CHECK(result_of(throwing(UsageError("shape"))).status == Status::bad_input);
  CHECK(result_of(throwing(BadInput("file"))).status == Status::bad_input);
  CHECK(result_of(throwing(std::bad_alloc())).status == Status::device_error);
  CHECK(result_of(throwing(std::runtime_error("bug"))).status == Status::internal_error);
}

TEST_CASE(
    "an allocation that fails is a device error, whichever it is, and harms nothing after it") {
  FaultyDevice device(suite().device(), {});
  const CheckpointResult& right = suite().right(norm());
  REQUIRE(right.status == Status::pass);
  int failures = 0;
  for (int call = 0;; ++call) {
    device.fail_allocation(call);
    const auto result = suite().run(norm(), device);
    if (result.status == Status::pass) break;
    CHECK(result.status == Status::device_error);
    CHECK(mentions(result.reason, "out of device memory"));
    ++failures;
    device.fail_allocation(-1);
    CHECK(suite().run(norm(), device).output_sha256 == right.output_sha256);
  }
  CHECK(failures >= 3);  // input, weight and output, which both runs share
}

TEST_CASE("a failed synchronisation is a device error and harms nothing after it") {
  FaultyDevice device(suite().device(), {});
  device.fail_synchronize();
  CHECK(suite().run(norm(), device).status == Status::device_error);
  CHECK(suite().run(norm(), device).status == Status::pass);
}

TEST_CASE("a device that failed once is not judged by it again") {
  int calls = 0;
  FaultyDevice device(suite().device(),
                      norm_hook([&calls](Call& c, auto& out, auto& x, auto& w, auto& p) {
                        if (++calls == 1) throw DeviceError("lost");
                        c.ops.rms_norm(out, x, w, p);
                      }));
  CHECK(suite().run(norm(), device).status == Status::device_error);
  CHECK(suite().run(norm(), device).status == Status::pass);
}

}  // namespace plumb::harness::testing
