// A benchmark gives figures for what is right, and none for what is wrong.
#include "harness/bench/bench.h"

#include <nlohmann/json.hpp>

#include "harness/bench/operands.h"
#include "harness/bench/report.h"
#include "kernels/core/error.h"
#include "tests/catch.h"
#include "tests/faults/faulty_device.h"

namespace plumb::harness {
namespace {

using testing::Call;
using testing::FaultyDevice;
using testing::Hooks;

constexpr Ceilings kCeilings{1e9, 1e9};

BenchOptions quickly() {
  BenchOptions out;
  out.batches = 3;
  out.seconds = 0;
  out.rotate_bytes = 1;
  return out;
}

BenchCase find(const std::vector<BenchCase>& cases, const std::string& name) {
  for (const BenchCase& one : cases) {
    if (one.name == name) return one;
  }
  throw UsageError(name);
}

BenchResult bench(Device& device, const std::string& name, const BenchSizes& sizes,
                  const std::string& shape = "tiny-gemma2") {
  const auto oracle = open_device("oracle");
  const BenchShape& found = find_bench_shape(shape);
  return run_bench(find(bench_cases(found, sizes), name), found, sizes, device, *oracle, kCeilings,
                   quickly());
}

TEST_CASE("every case of a small shape passes on the cpu, prefill and decode, and has figures") {
  const auto device = open_device("cpu", 1);
  const auto oracle = open_device("oracle");
  const auto shape = GENERATE("tiny", "tiny-gemma2", "tiny-zamba2");
  const auto dtype = GENERATE(DType::f32, DType::bf16);
  const auto tokens = GENERATE(1, 37);
  const BenchSizes sizes{tokens, 50, dtype};
  for (const BenchCase& one : bench_cases(find_bench_shape(shape), sizes)) {
    const BenchResult r =
        run_bench(one, find_bench_shape(shape), sizes, *device, *oracle, kCeilings, quickly());
    CAPTURE(one.name, r.reason);
    CHECK(r.status == Status::pass);
    CHECK(r.median > 0);
    CHECK(r.p10 <= r.median);
    CHECK(r.median <= r.p90);
    CHECK(r.cost.bytes > 0);
    CHECK((r.copy > 0) == !share_of_ceiling(r, kCeilings).of_matrix);
    CHECK(!r.impl.empty());
  }
}

TEST_CASE("a wrong kernel gets its reason and no figure") {
  const auto device = open_device("cpu", 1);
  Hooks hooks;
  hooks.rms_norm = [](Call& call, const Tensor& out, const Tensor& x, const Tensor& weight,
                      RmsNormParams params) {
    params.eps = 0.1;
    call.ops.rms_norm(out, x, weight, params);
  };
  FaultyDevice faulty(*device, hooks);
  const BenchResult r = bench(faulty, "rms_norm", {37, 37, DType::bf16});
  CHECK(r.status == Status::fail);
  CHECK(r.reason.find("before timing: rms_norm: ") == 0);
  const auto line = nlohmann::json::parse(bench_json(r, faulty, kCeilings));
  CHECK(line["status"] == "fail");
  CHECK(!line.contains("median_us"));
  CHECK(!line.contains("gb_per_s"));
}

TEST_CASE("a part that is wrong is found inside a decoder layer") {
  const auto device = open_device("cpu", 1);
  Hooks hooks;
  hooks.rotary = [](Call& call, const Tensor& out, const Tensor& x, const Tensor& cos,
                    const Tensor& sin,
                    RotaryStyle) { call.ops.rotary(out, x, cos, sin, RotaryStyle::interleaved); };
  FaultyDevice faulty(*device, hooks);
  const BenchResult r = bench(faulty, "decoder_layer", {37, 50, DType::bf16});
  CHECK(r.status == Status::fail);
  CHECK(r.reason.find("rotary: ") != std::string::npos);
}

TEST_CASE("a kernel that forgets the last row, column or the softcap is seen on samples") {
  const auto device = open_device("cpu", 1);
  const BenchSizes sizes{200, 200, DType::f32};
  Hooks hooks;
  hooks.add = [](Call& call, const Tensor& out, const Tensor& a, const Tensor& b) {
    const auto most = [](const Tensor& t) { return t.slice(-2, 0, t.dim(-2) - 1); };
    call.ops.add(most(out), most(a), most(b));
  };
  hooks.linear = [](Call& call, const Tensor& out, const Tensor& x, const Tensor& weight,
                    const Tensor& bias) {
    const int64_t n = weight.dim(0);
    call.ops.linear(out, x, weight, bias);
    call.ops.linear(out.slice(-1, n - 1, n), x, weight.slice(0, 0, 1), bias);
  };
  hooks.sdpa = [](Call& call, const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                  const AttentionMask& mask, SdpaParams params) {
    params.softcap.reset();
    call.ops.sdpa(out, q, k, v, mask, params);
  };
  FaultyDevice faulty(*device, hooks);
  for (const char* name : {"add", "linear.o_proj", "sdpa"}) {
    CAPTURE(name);
    CHECK(bench(faulty, name, sizes).status == Status::fail);
  }
}

TEST_CASE("a kernel that is right only once is seen after timing") {
  const auto device = open_device("cpu", 1);
  Hooks hooks;
  int calls = 0;
  hooks.add = [&calls](Call& call, const Tensor& out, const Tensor& a, const Tensor& b) {
    call.ops.add(out, a, calls++ == 0 ? b : a);
  };
  FaultyDevice faulty(*device, hooks);
  const BenchResult r = bench(faulty, "add", {37, 37, DType::f32});
  CHECK(r.status != Status::pass);
  CHECK(r.reason.find("after timing") != std::string::npos);
}

TEST_CASE("a case that a device lacks is unsupported, one that fails a device error") {
  const auto device = open_device("cpu", 1);
  Hooks hooks;
  hooks.add = [](Call&, const Tensor&, const Tensor&, const Tensor&) { throw Unsupported("no"); };
  FaultyDevice faulty(*device, hooks);
  CHECK(bench(faulty, "add", {3, 3, DType::f32}).status == Status::unsupported);
  faulty.fail_allocation(2);
  CHECK(bench(faulty, "rms_norm", {3, 3, DType::f32}).status == Status::device_error);
}

TEST_CASE("operand sets rotate, have different contents and fill the bytes asked for") {
  const auto device = open_device("cpu", 1);
  const OperandSets sets(*device, {{"x", DType::f32, {1, 25}, {Fill::normal}}}, 1000);
  CHECK(sets.count() == 10);
  CHECK(sets.set(0).at("x").data<float>()[0] != sets.set(1).at("x").data<float>()[0]);
}

TEST_CASE("quantiles are between the elements, shares are of the nearer ceiling") {
  CHECK(quantile({1, 2, 4}, 0.5) == 2);
  CHECK(quantile({1, 2, 4}, 0.75) == 3);
  BenchResult r;
  r.median = 2;
  r.cost = {1e9, 3e9};
  const Share share = share_of_ceiling(r, kCeilings);
  CHECK(share.value == 1.5);
  CHECK(share.of_matrix);
}

TEST_CASE("a short call is compared with a copy of its size, a product is not") {
  const auto device = open_device("cpu", 1);
  const BenchSizes sizes{64, 64, DType::f32};
  const auto line = [&](const char* name) {
    return nlohmann::json::parse(bench_json(bench(*device, name, sizes), *device, kCeilings));
  };
  const auto add = line("add"), product = line("linear.gate_proj");
  CHECK(add["share_of"] == "copy");
  CHECK(add["share_of_copy_of_size"].get<double>() ==
        Approx(add["copy_us"].get<double>() / add["median_us"].get<double>()));
  CHECK(product["share_of"] == "matrix");
  CHECK(!product.contains("copy_us"));
}

TEST_CASE("unknown shapes are named with the known ones") {
  CHECK_THROWS_WITH(find_bench_shape("llama9"),
                    Catch::Contains("llama9") && Catch::Contains("llama3-8b"));
}

}  // namespace
}  // namespace plumb::harness
