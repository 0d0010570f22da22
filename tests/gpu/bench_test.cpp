// Measuring on a GPU: launches are recorded and replayed where a call does nothing but launch.
#include "harness/bench/bench.h"

#include "kernels/core/device.h"
#include "kernels/core/error.h"
#include "tests/gpu/gpu_devices.h"

namespace plumb {
namespace {

using Work = std::function<void(blocks::Context&, const Tensor& out, const Tensor& x)>;

void doubled(blocks::Context& ctx, const Tensor& out, const Tensor& x) { ctx.ops.add(out, x, x); }

// Several sets, the last call of a batch with the last of them.
harness::BenchResult measured(Device& device, const Work& work) {
  const harness::BenchOperand out{"out", DType::f32, {3, 8}, {}, true},
      x{"x", DType::f32, {3, 8}, {harness::Fill::normal}};
  const harness::BenchCase one{"add", "add", {out, x}, [=](const harness::BenchOperands& t) {
                                 return [=, y = t.at("out"), x = t.at("x")](blocks::Context& ctx) {
                                   work(ctx, y, x);
                                 };
                               }};
  harness::BenchOptions options;
  options.batches = 3;
  options.rotate_bytes = 700;
  const auto oracle = open_device("oracle");
  return harness::run_bench(one, harness::find_bench_shape("tiny"), {3, 3, DType::f32}, device,
                            *oracle, {1e9, 1e9}, options);
}

TEST_CASE("bench: calls that only launch are replayed, in whole turns of the sets") {
  for (const std::string& name : gpu_devices()) {
    const auto device = open_device(name);
    const harness::BenchResult r = measured(*device, doubled);
    CAPTURE(name, r.reason);
    CHECK(r.status == harness::Status::pass);
    CHECK(r.replayed);
    CHECK(r.sets > 1);
    CHECK(r.calls % r.sets == 0);
  }
}

TEST_CASE("bench: calls that also wait are queued") {
  for (const std::string& name : gpu_devices()) {
    const auto device = open_device(name);
    const harness::BenchResult r =
        measured(*device, [](blocks::Context& ctx, const Tensor& out, const Tensor& x) {
          doubled(ctx, out, x);
          ctx.ops.device().synchronize();
        });
    CAPTURE(name, r.reason);
    CHECK(r.status == harness::Status::pass);
    CHECK_FALSE(r.replayed);
  }
}

TEST_CASE("bench: what is wrong only when it is replayed has no figure") {
  for (const std::string& name : gpu_devices()) {
    const auto device = open_device(name);
    const auto recording = [&] {
      try {
        device->allocate(DType::f32, {1});
        return false;
      } catch (const UsageError&) {
        return true;
      }
    };
    const harness::BenchResult r =
        measured(*device, [&](blocks::Context& ctx, const Tensor& out, const Tensor& x) {
          doubled(ctx, out, x);
          if (recording()) doubled(ctx, out, out);
        });
    CAPTURE(name);
    CHECK(r.status == harness::Status::nondeterministic);
    CHECK(r.reason == "the timed calls left other bytes than the judged one");
  }
}

}  // namespace
}  // namespace plumb
